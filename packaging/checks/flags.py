"""Flags of commands, variables and arguments: each is one of docs/cli.md."""

import re
import shlex
from pathlib import Path

# Variables that are no flags: of the program (crates/cli/src/settings.rs), the installer, the Compose file.
OTHER_VARIABLES = {
    "STONECHAT_MODELS",
    "STONECHAT_CONFIG",
    "STONECHAT_CUDA_ARCH",
    "STONECHAT_CUDA_CUBINS",
    "STONECHAT_CUDA_PDL",
    "STONECHAT_ISA",
    "STONECHAT_RELEASE",
    "STONECHAT_CHAT_MODEL",
    "STONECHAT_SPEECH_MODEL",
    "STONECHAT_MEMORY",
    "STONECHAT_WYOMING_ADDRESS",
    # The name of any flag, in documents.
    "STONECHAT_SOME_FLAG",
}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def of_document(path: Path) -> dict[str, set[str]]:
    """Long flags of each verb, with those of every verb."""
    sections = re.split(r"^## ", path.read_text(), flags=re.MULTILINE)
    found = {}
    for section in sections:
        title, _, text = section.partition("\n")
        items = re.findall(r"^- (`-.*)", text, flags=re.MULTILINE)
        flags = {flag for item in items for flag in re.findall(r"`?(--[a-z][a-z0-9-]*)", item)}
        found[title.strip().removeprefix("stonechat ").strip()] = flags
    everywhere = {"--help", "--version"}.union(*(found[key] for key in found if " " in key or key == "stonechat"))
    return {verb: flags | everywhere for verb, flags in found.items()}


def variables(known: dict[str, set[str]]) -> set[str]:
    flags = set().union(*known.values())
    return {"STONECHAT_" + flag[2:].replace("-", "_").upper() for flag in flags} | OTHER_VARIABLES


def check_arguments(report, path: Path, arguments: list[str], known: dict[str, set[str]]) -> None:
    """Checks the arguments of the program, of which the first is the verb."""
    verb, *rest = arguments
    if verb not in known:
        report.finding(path, f"expected a verb of docs/cli.md, got `{verb}`")
        return
    for argument in rest:
        flag = argument.split("=")[0]
        if flag.startswith("--") and flag not in known[verb]:
            report.finding(path, f"no flag `{flag}` of `stonechat {verb}` in docs/cli.md")


def check_variables(report, path: Path, names, known: dict[str, set[str]]) -> None:
    allowed = variables(known)
    for name in names:
        if name.startswith("STONECHAT_") and name not in allowed:
            report.finding(path, f"no flag in docs/cli.md has the variable `{name}`")


def commands(text: str):
    """Yields the arguments of each call of the program in the shell blocks of a document."""
    for language, block in FENCE.findall(text):
        if language not in ("sh", "bash"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            try:
                words = shlex.split(line, comments=True)
            except ValueError:
                # A text in quotes goes on in the next line.
                continue
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words.pop(0)
            if len(words) > 1 and words[0] == "stonechat" and words[1][0].islower():
                yield [word for word in words[1:] if word != "&"]


def check_guides(report, known: dict[str, set[str]]) -> None:
    n_commands = 0
    guide = report.root / "docs/guide"
    documents = [*guide.rglob("*.md"), report.root / "packaging/README.md"]
    for path in sorted(documents):
        text = path.read_text()
        for arguments in commands(text):
            # The verbs' own flags run in tests; those of servers and of MCP do not end by themselves.
            if arguments[0] in ("serve", "mcp"):
                check_arguments(report, path, arguments, known)
                n_commands += 1
        check_variables(report, path, set(re.findall(r"\bSTONECHAT_[A-Z0-9_]+\b", text)), known)
    report.done(f"flags of {n_commands} commands of the guides")
