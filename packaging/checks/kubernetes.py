"""Manifests of Kubernetes, and the Compose file."""

import re
from pathlib import Path

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
LIMITS = ("cpu", "memory", "ephemeral-storage")
REQUIRED = {"Deployment", "Service", "PersistentVolumeClaim", "NetworkPolicy", "PodDisruptionBudget"}


def check_files(report, yaml, known_flags) -> None:
    """Checks what the files of packaging/kubernetes apply."""
    folder = report.root / "packaging/kubernetes"
    base = folder / "base"
    kustomization = yaml.safe_load((base / "kustomization.yaml").read_text())
    documents = []
    for name in kustomization["resources"]:
        documents += yaml.safe_load_all((base / name).read_text())
    check_version(report, base / "kustomization.yaml", kustomization["images"][0]["newTag"])
    missing = REQUIRED - {document["kind"] for document in documents}
    if missing:
        report.finding(base, f"no {', '.join(sorted(missing))}")
    check_documents(report, base, documents, known_flags)
    scaled = list(yaml.safe_load_all((folder / "autoscaling/hpa.yaml").read_text()))
    check_documents(report, folder / "autoscaling", documents + scaled, known_flags)
    check_metric(report, yaml, folder / "autoscaling", scaled[0])
    report.done(f"{len(documents) + len(scaled)} manifests")
    check_kustomize(report, yaml, folder, known_flags)


def check_kustomize(report, yaml, folder: Path, known_flags) -> None:
    kubectl = report.program("kubectl", "kustomize")
    if not kubectl:
        return
    for name in ("base", "autoscaling"):
        built = report.run(folder / name, [kubectl, "kustomize", folder / name])
        if built:
            check_documents(report, folder / name, list(yaml.safe_load_all(built)), known_flags)
    report.done("kubectl kustomize")


def check_metric(report, yaml, folder: Path, autoscaler: dict) -> None:
    """Compares the metric of the autoscaler with the one that the adapter serves."""
    used = autoscaler["spec"]["metrics"][0]["pods"]["metric"]["name"]
    rules = yaml.safe_load((folder / "adapter-values.yaml").read_text())["rules"]["custom"]
    served = [rule["name"]["as"] for rule in rules]
    if used not in served:
        report.finding(folder, f"the autoscaler reads `{used}`, the adapter serves {served}")


def check_version(report, path: Path, got: str) -> None:
    manifest = (report.root / "Cargo.toml").read_text()
    expected = re.search(r'^version = "(.+)"', manifest, re.MULTILINE).group(1)
    if got != expected:
        report.finding(path, f"expected version {expected} of Cargo.toml, got {got}")


def check_documents(report, path: Path, documents: list, known_flags) -> None:
    """Checks the objects of one installation."""
    documents = [document for document in documents if document]
    deployments = [document for document in documents if document["kind"] == "Deployment"]
    for document in documents:
        if "namespace" in document["metadata"]:
            report.finding(path, f"{document['kind']} names a namespace")
        spec = document["spec"]
        selector = spec.get("podSelector", spec.get("selector"))
        if document["kind"] != "PersistentVolumeClaim" and selector == {}:
            report.finding(path, f"the selector of {document['kind']} selects every pod")
    for deployment in deployments:
        check_pod(report, path, deployment["spec"]["template"]["spec"], known_flags)
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        check_references(report, path, documents, labels, deployment)
    check_schemas(report, path, documents)


def check_pod(report, path: Path, pod: dict, known_flags) -> None:
    from checks import flags

    def expect(holds, text):
        if not holds:
            report.finding(path, text)

    [container] = pod["containers"]
    arguments = container["args"]
    flags.check_arguments(report, path, arguments, known_flags)
    names = [variable["name"] for variable in container.get("env", [])]
    flags.check_variables(report, path, names, known_flags)
    values = dict(argument[2:].split("=", 1) for argument in arguments if "=" in argument)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    expect(str(ports["http"]) == values["port"], "the port of the container is not that of --port")
    for probe in PROBES:
        expect(container.get(probe, {}).get("httpGet", {}).get("path") == "/health", f"no {probe} on /health")
        expect(container.get(probe, {}).get("httpGet", {}).get("port") in ports, f"{probe}: no such port")
    startup = container["startupProbe"]
    expect(startup["periodSeconds"] * startup["failureThreshold"] >= 600, "models may take longer than startupProbe")
    for limit in LIMITS:
        expect(limit in container["resources"].get("limits", {}), f"no limit of {limit}")
        expect(limit in container["resources"].get("requests", {}), f"no request of {limit}")
    security = container["securityContext"]
    expect(security.get("allowPrivilegeEscalation") is False, "allowPrivilegeEscalation is not false")
    expect(security.get("readOnlyRootFilesystem") is True, "the root file system can be written")
    expect(security.get("capabilities") == {"drop": ["ALL"]}, "capabilities are not dropped")
    expect(pod["securityContext"].get("runAsNonRoot") is True, "runAsNonRoot is not true")
    profile = pod["securityContext"].get("seccompProfile", {}).get("type")
    expect(profile == "RuntimeDefault", "no seccompProfile RuntimeDefault")
    expect(pod.get("enableServiceLinks") is False, "enableServiceLinks sets STONECHAT_PORT to an address")
    expect(pod.get("automountServiceAccountToken") is False, "automountServiceAccountToken is not false")
    sleep = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    stop = sleep + int(values["stop-timeout"])
    expect(pod["terminationGracePeriodSeconds"] > stop, "terminationGracePeriodSeconds is below --stop-timeout")
    volumes = {volume["name"] for volume in pod["volumes"]}
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    expect(volumes == mounts, f"volumes {sorted(volumes)}, mounts {sorted(mounts)}")


def check_references(report, path: Path, documents: list, labels: dict, deployment: dict) -> None:
    """Checks that other objects select the pods, their ports and volumes."""
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    ports = {port["name"] for port in container["ports"]}
    claims = {one["metadata"]["name"] for one in documents if one["kind"] == "PersistentVolumeClaim"}
    for document in documents:
        spec, kind = document["spec"], document["kind"]
        selector = {"Service": spec.get("selector")}.get(kind)
        if kind in ("Deployment", "PodDisruptionBudget", "NetworkPolicy"):
            selector = spec.get("podSelector", spec.get("selector")).get("matchLabels")
        if selector is not None and not selector.items() <= labels.items():
            report.finding(path, f"{kind} selects {selector}, pods have {labels}")
        used = [port["targetPort"] for port in spec.get("ports", [])] if kind == "Service" else []
        if kind == "NetworkPolicy":
            used = [port["port"] for rule in spec["ingress"] for port in rule["ports"]]
        if not set(used) <= ports:
            report.finding(path, f"{kind} has the ports {used}, the container {sorted(ports)}")
        target = spec.get("scaleTargetRef", {}).get("name", deployment["metadata"]["name"])
        if target != deployment["metadata"]["name"]:
            report.finding(path, f"{kind} scales `{target}`")
    for volume in deployment["spec"]["template"]["spec"]["volumes"]:
        claim = volume.get("persistentVolumeClaim", {}).get("claimName")
        if claim and claims and claim not in claims:
            report.finding(path, f"no PersistentVolumeClaim `{claim}`")


def check_schemas(report, path: Path, documents: list) -> None:
    """Validates against the schemas of Kubernetes; unknown fields are errors."""
    try:
        import kubernetes_validate
    except ImportError:
        report.skipped(f"schemas of {path.name}", "Python package kubernetes_validate")
        return
    for document in documents:
        try:
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
        except kubernetes_validate.SchemaNotFoundError:
            # Objects of operators.
            continue
        except kubernetes_validate.ValidationError as error:
            report.finding(path, f"{document['kind']}: {error.message}")


def check_compose(report, yaml, known_flags) -> None:
    from checks import flags

    folder = report.root / "packaging/compose"
    path = folder / "compose.yaml"
    services = yaml.safe_load(path.read_text())["services"]
    server = services["stonechat"]
    flags.check_arguments(report, path, server["command"], known_flags)
    for file in (path, folder / "gpu.yaml", folder / "voice.yaml", folder / "env.example"):
        names = re.findall(r"\bSTONECHAT_[A-Z_]+", file.read_text())
        flags.check_variables(report, file, names, known_flags)
    declared = set(re.findall(r"^(\w+)=", (folder / "env.example").read_text(), re.MULTILINE))
    used = set(re.findall(r"\$\{(\w+)", path.read_text()))
    if declared != used:
        report.finding(path, f"variables {sorted(used)}, env.example has {sorted(declared)}")
    for name, holds in {
        "read_only": server.get("read_only") is True,
        "cap_drop": server.get("cap_drop") == ["ALL"],
        "mem_limit": "mem_limit" in server,
        "healthcheck": "healthcheck" in server,
        "a volume of models": any(volume.endswith(":/models") for volume in server["volumes"]),
        "STONECHAT_API_KEY": "STONECHAT_API_KEY" in server["environment"],
    }.items():
        if not holds:
            report.finding(path, f"stonechat: no {name}")
    if "HEALTHCHECK" not in (report.root / "packaging/Containerfile").read_text():
        report.finding(path, "the image has no test for the health check")
    for name, service in services.items():
        if "no-new-privileges:true" not in service.get("security_opt", []):
            report.finding(path, f"{name}: no no-new-privileges")
        for port in service["ports"]:
            if not port.startswith("127.0.0.1:"):
                report.finding(path, f"{name}: port {port} is published beyond this machine")
        unit = "http://stonechat:8080/v1"
        addresses = [value for key, value in service["environment"].items() if key.endswith("BASE_URL")]
        if any(address != unit for address in addresses):
            report.finding(path, f"{name}: expected {unit}, got {addresses}")
    report.done(f"{len(services)} services of Compose")
