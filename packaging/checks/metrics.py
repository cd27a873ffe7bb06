"""Names and labels of metrics in the dashboard, the alerts and the rules of autoscaling: each is one of the server's."""

import json
import re
import tempfile
from pathlib import Path

FAMILIES = ["crates/server/src/metrics/families.rs", "crates/server/src/metrics/speech.rs"]
LABELS = "crates/server/src/metrics/labels.rs"
NAME = re.compile(r"\b(?:stonechat|llamacpp):[a-z0-9_]+")
# Labels that Prometheus adds.
TARGET_LABELS = {"job", "instance", "namespace", "pod", "service", "container", "__name__"}
SELECTOR = re.compile(r"((?:stonechat|llamacpp):[a-z0-9_]+)\{([^}]*)\}")
FILES = [
    "packaging/prometheus/alerts.yml",
    "packaging/prometheus/alerts.test.yml",
    "packaging/kubernetes/autoscaling/adapter-values.yaml",
    "packaging/kubernetes/autoscaling/scaledobject.yaml",
    "packaging/grafana/stonechat.json",
]


def label_sets(text: str) -> dict[str, set[str]]:
    """Labels of each structure of labels."""
    structures = re.findall(r"struct (\w+Labels?) \{(.*?)\}", text, re.DOTALL)
    return {name: set(re.findall(r"(\w+): ", body)) for name, body in structures}


def samples(root: Path) -> dict[str, set[str]]:
    """Names of the samples of /metrics with their labels."""
    text = "\n".join((root / file).read_text() for file in FAMILIES)
    labels = label_sets((root / LABELS).read_text())
    found = {}
    for structure, body in re.findall(r"struct (\w+) \{(.*?)\n\}", text, re.DOTALL):
        types = dict(re.findall(r"pub\(super\) (\w+): (.+),", body))
        new = text.split(f"impl {structure} ", 1)[1].split("\nimpl ", 1)[0]
        prefix = re.search(r'prefix: "(\w+)"', new).group(1)
        registered = re.findall(r'(\w+): names\s*\.(?:add|histogram)\(\s*"(\w+)"', new)
        if len(registered) != len(types):
            raise ValueError(f"{structure} has {len(types)} fields, {len(registered)} are registered")
        for field, name in registered:
            kind = types[field]
            of_type = next((labels[name] for name in labels if name in kind), None)
            if of_type is None:
                of_type = {"model_name"} if kind.startswith("Model") else set()
            if "Histogram" in kind:
                ends = {"_bucket": of_type | {"le"}, "_sum": of_type, "_count": of_type}
            else:
                ends = {"" if "Gauge" in kind else "_total": of_type}
            found.update({f"{prefix}:{name}{end}": labels for end, labels in ends.items()})
    return found


def queries(dashboard: dict) -> list[str]:
    panels = dashboard["panels"]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    variables = dashboard["templating"]["list"]
    return expressions + [one["query"]["query"] for one in variables if one["type"] == "query"]


def check(report, yaml) -> None:
    known = samples(report.root)
    n_names = 0
    for file in FILES:
        path = report.root / file
        text = path.read_text()
        if path.suffix == ".json":
            text = "\n".join(queries(json.loads(text)))
        names = NAME.findall(text)
        n_names += len(names)
        for name in sorted(set(names) - known.keys()):
            report.finding(path, f"the server has no metric `{name}`")
        for name, matchers in SELECTOR.findall(text):
            used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
            for label in sorted(used - known.get(name, used) - TARGET_LABELS):
                report.finding(path, f"`{name}` has no label `{label}`")
    check_dashboard(report)
    report.done(f"{n_names} names of metrics are among the {len(known)} of the server")
    check_queries(report)


def check_dashboard(report) -> None:
    path = report.root / "packaging/grafana/stonechat.json"
    panels = json.loads(path.read_text())["panels"]
    ids = [panel["id"] for panel in panels]
    if len(set(ids)) != len(ids):
        report.finding(path, "two panels have one id")
    cells = set()
    for panel in panels:
        place = panel["gridPos"]
        area = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        if place["x"] + place["w"] > 24 or area & cells:
            report.finding(path, f"panel `{panel['title']}` is outside the grid or over another")
        cells |= area
        if panel["type"] != "row" and not panel["targets"]:
            report.finding(path, f"panel `{panel['title']}` has no query")


def check_queries(report) -> None:
    """Parses rules and the dashboard's queries with Prometheus, and runs the tests of the alerts."""
    folder = report.root / "packaging/prometheus"
    promtool = report.program("promtool", "queries of alerts and dashboard")
    if not promtool:
        return
    report.run(folder / "alerts.yml", [promtool, "check", "rules", folder / "alerts.yml"])
    report.run(folder / "scrape.yml", [promtool, "check", "config", "--syntax-only", folder / "scrape.yml"])
    report.run(folder / "alerts.test.yml", [promtool, "test", "rules", folder / "alerts.test.yml"])
    dashboard = report.root / "packaging/grafana/stonechat.json"
    expressions = [one for one in queries(json.loads(dashboard.read_text())) if "label_values" not in one]
    rules = [
        {"record": f"panel:{i}", "expr": one.replace("$__rate_interval", "5m")}
        for i, one in enumerate(expressions)
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        # JSON is YAML, too.
        json.dump({"groups": [{"name": "dashboard", "rules": rules}]}, file)
        file.flush()
        report.run(dashboard, [promtool, "check", "rules", file.name])
    report.done(f"promtool: alerts, their tests, {len(rules)} queries of the dashboard")
