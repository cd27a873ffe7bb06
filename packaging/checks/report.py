"""Findings, skipped checks, and programs that checks call."""

import importlib
import os
import shutil
import subprocess
from pathlib import Path


class Report:
    def __init__(self, root: Path):
        self.root = root
        self.n_findings = 0

    def finding(self, path: Path, text: str) -> None:
        name = path.relative_to(self.root) if path.is_relative_to(self.root) else path
        print(f"{name}: {text}")
        self.n_findings += 1

    def done(self, text: str) -> None:
        print(f"ok: {text}")

    def skipped(self, check: str, missing: str) -> None:
        print(f"SKIPPED {check}: no {missing}")

    def package(self, name: str, check: str):
        """Returns a Python package, or None."""
        try:
            return importlib.import_module(name)
        except ImportError:
            self.skipped(check, f"Python package {name}")
            return None

    def program(self, name: str, check: str) -> str | None:
        """Returns the path of a program, or None."""
        # Servers are not in the PATH of users.
        path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin")
        if path is None:
            self.skipped(check, f"program {name}")
        return path

    def run(self, source: Path, command: list, **options) -> str | None:
        """Returns what a command prints, or None and a finding if it fails."""
        command = [str(part) for part in command]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 120}
        ran = subprocess.run(command, **pipes, **options)
        if ran.returncode != 0:
            self.finding(source, f"{Path(command[0]).name}: {(ran.stderr or ran.stdout).strip()}")
            return None
        return ran.stdout or ran.stderr

    def end(self) -> int:
        print(f"packaging: {self.n_findings} findings")
        return 1 if self.n_findings else 0
