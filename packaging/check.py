#!/usr/bin/env python3
"""Checks the files of packaging and the commands of the guides, offline: `python3 packaging/check.py`.

`cargo xtask ci --only packaging` runs it with the Python packages that it can use. Checks that need a program or a package
which is absent print a line that starts in SKIPPED and names it.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "packaging"))
sys.dont_write_bytecode = True

from checks import flags, helm, kubernetes, metrics, proxies, systemd  # noqa: E402
from checks.report import Report  # noqa: E402


def main() -> int:
    report = Report(ROOT)
    known_flags = flags.of_document(ROOT / "docs/cli.md")
    yaml = report.package("yaml", "every check of YAML files")
    if yaml:
        yaml_files(report, yaml)
        kubernetes.check_files(report, yaml, known_flags)
        kubernetes.check_compose(report, yaml, known_flags)
        helm.check(report, yaml, known_flags)
    metrics.check(report, yaml)
    systemd.check(report, known_flags)
    flags.check_guides(report, known_flags)
    proxies.check(report)
    return report.end()


def yaml_files(report: Report, yaml) -> None:
    """Parses each YAML file; those of the chart's templates are no YAML yet."""
    files = [path for end in ("*.yaml", "*.yml") for path in (ROOT / "packaging").rglob(end)]
    files = [path for path in files if path.parent.name != "templates"]
    for path in files:
        try:
            documents = list(yaml.safe_load_all(path.read_text()))
        except yaml.YAMLError as error:
            report.finding(path, str(error))
            continue
        if not documents or None in documents:
            report.finding(path, "expected YAML, got an empty document")
    report.done(f"{len(files)} YAML files parse")


if __name__ == "__main__":
    sys.exit(main())
