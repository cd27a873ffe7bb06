"""Configurations of nginx and Caddy in docs/guide/proxy.md and serve.md: parsed by the servers themselves."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from checks.flags import FENCE

DOCUMENTS = ("docs/guide/proxy.md", "docs/guide/serve.md")


def configurations(report, language: str):
    """Yields the blocks of each document, which belong together."""
    for document in DOCUMENTS:
        path = report.root / document
        blocks = [text for found, text in FENCE.findall(path.read_text()) if found == language]
        if blocks:
            yield path, blocks


def check(report) -> None:
    nginx = report.program("nginx", "nginx -t of the guides")
    if nginx:
        check_nginx(report, nginx)
    caddy = report.program("caddy", "caddy validate of the guides")
    if caddy:
        check_caddy(report, caddy)


def certificate(folder: Path) -> tuple[Path, Path] | None:
    """Writes a certificate of its own making."""
    openssl = shutil.which("openssl")
    if not openssl:
        return None
    key, crt = folder / "models.key", folder / "models.crt"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=models.example.org"]
    subprocess.run([*command, "-keyout", key, "-out", crt], check=True, capture_output=True)
    return key, crt


def check_nginx(report, nginx: str) -> None:
    n_blocks = 0
    for path, blocks in configurations(report, "nginx"):
        text = "\n".join(blocks)
        with tempfile.TemporaryDirectory() as folder:
            if "/etc/ssl" in text:
                if not certificate(Path(folder)):
                    report.skipped("nginx -t with TLS", "program openssl")
                    continue
                text = text.replace("/etc/ssl", folder)
            # Paths and ports that need no privilege.
            paths = "".join(
                f"{name}_temp_path {folder}/{name};\n"
                for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
            )
            whole = f"pid {folder}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n{paths}{text}\n}}\n"
            configuration = Path(folder) / "nginx.conf"
            configuration.write_text(whole)
            report.run(path, [nginx, "-t", "-q", "-p", folder, "-c", configuration])
        n_blocks += len(blocks)
    report.done(f"nginx -t: {n_blocks} blocks")


def check_caddy(report, caddy: str) -> None:
    n_blocks = 0
    for path, blocks in configurations(report, "caddy"):
        for text in blocks:
            with tempfile.TemporaryDirectory() as folder:
                configuration = Path(folder) / "Caddyfile"
                configuration.write_text(text)
                environment = {"HOME": folder, "PATH": "/usr/bin:/bin"}
                command = [caddy, "validate", "--config", configuration, "--adapter", "caddyfile"]
                report.run(path, command, env=environment)
        n_blocks += len(blocks)
    report.done(f"caddy validate: {n_blocks} blocks")
