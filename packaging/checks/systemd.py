"""The units of systemd: `verify`, and at most MAX_EXPOSURE of `security`."""

import re
import shutil
import tempfile
from pathlib import Path

from checks import flags

# 1.2 without and 1.4 with a GPU by systemd 252; later versions weigh some settings otherwise.
MAX_EXPOSURE = 1.8


def check(report, known_flags) -> None:
    folder = report.root / "packaging/systemd"
    for path in folder.iterdir():
        text = path.read_text()
        flags.check_variables(report, path, re.findall(r"\bSTONECHAT_[A-Z_]+", text), known_flags)
    [command] = re.findall(r"^ExecStart=\S+ (.*)", (folder / "stonechat.service").read_text(), re.MULTILINE)
    flags.check_arguments(report, folder / "stonechat.service", command.split(), known_flags)
    analyze = report.program("systemd-analyze", "systemd-analyze verify and security")
    if not analyze:
        return
    for drop_in in (None, "gpu.conf"):
        with tempfile.TemporaryDirectory() as copy:
            check_units(report, folder, Path(copy), analyze, drop_in)


def check_units(report, folder: Path, copy: Path, analyze: str, drop_in: str | None) -> None:
    service = copy / "stonechat.service"
    # The program need not be installed, nor its man page.
    text = (folder / "stonechat.service").read_text()
    text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE)
    service.write_text(text)
    shutil.copy(folder / "stonechat.socket", copy)
    if drop_in:
        (copy / "stonechat.service.d").mkdir()
        shutil.copy(folder / drop_in, copy / "stonechat.service.d")
    source = folder / (drop_in or "stonechat.service")
    # Unknown settings are warnings, which `run` returns.
    warnings = report.run(source, [analyze, "verify", "--man=no", service, copy / "stonechat.socket"])
    for line in (warnings or "").splitlines():
        if "stonechat" in line or "gpu.conf" in line:
            report.finding(source, line)
    printed = report.run(source, [analyze, "security", "--offline=true", "--no-pager", service])
    if printed is None:
        return
    exposure = float(re.search(r"exposure level for \S+: ([0-9.]+)", printed).group(1))
    if exposure > MAX_EXPOSURE:
        report.finding(source, f"systemd-analyze security: expected at most {MAX_EXPOSURE}, got {exposure}")
    report.done(f"systemd-analyze: {source.name} verifies, exposure {exposure}")
