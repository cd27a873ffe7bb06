"""Checks a running server with unmodified clients and plain HTTP: one named check for each behaviour.

python client.py URL --suite NAME --api-key KEY --model MODEL [--audio-model MODEL] [--only TEXT]...

Prints a line for each failed and each skipped check, then `N passed, M failed, K skipped`; the exit status is 1 if one
failed.
"""

import argparse
import importlib
import os
import pathlib
import sys
import time
import traceback

import harness

AUDIO = pathlib.Path(__file__).resolve().parents[4] / "test-data/audio"

# Modules that register the checks of a suite.
SUITES = {
    "openai": ["errors", "chat", "completions", "native", "audio", "tools", "responses"],
    "anthropic": ["anthropic_client"],
    "ollama": ["ollama_client"],
    "live": ["live"],
    "live-figures": ["live_figures"],
    "agents": ["agents"],
    "voice": ["voice"],
    "mcp": ["mcp_client"],
    "lm-eval": ["lm_eval_client"],
    "tool-tasks": ["tool_tasks"],
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("url", help="base URL without /v1")
    parser.add_argument("--suite", choices=SUITES, default="openai")
    parser.add_argument("--api-key", required=True)
    parser.add_argument("--model", required=True, help="language model")
    parser.add_argument("--audio-model", help="speech model; without it the checks of audio are left out")
    parser.add_argument("--scripted-model", help="model of tests/scripted; without it its checks are left out")
    parser.add_argument("--wyoming", help="URI of Wyoming; without it its checks are left out")
    parser.add_argument("--stonechat", help="program of stonechat; without it the checks that start it are left out")
    parser.add_argument("--audio", type=pathlib.Path, default=AUDIO, help="folder of the recordings")
    corpus = os.environ.get("STONECHAT_CORPUS")
    parser.add_argument("--corpus", type=pathlib.Path, default=corpus, help="folder of recordings with a manifest.jsonl")
    parser.add_argument("--only", action="append", default=[], help="checks whose names contain this")
    parser.add_argument("--verbose", action="store_true", help="print passed checks and tracebacks")
    return parser.parse_args()


def main():
    given = arguments()
    for module in SUITES[given.suite]:
        importlib.import_module(module)
    server = harness.Context(
        base=given.url.rstrip("/").removesuffix("/v1"),
        key=given.api_key,
        model=given.model,
        audio_model=given.audio_model,
        audio=given.audio,
        scripted_model=given.scripted_model,
        wyoming=given.wyoming,
        stonechat=given.stonechat,
        corpus=given.corpus,
    )
    passed, failed, skipped = 0, 0, 0
    for name, function, needs in harness.CHECKS:
        if given.only and not any(text in name for text in given.only):
            continue
        if missing := [need for need in needs if not getattr(server, need)]:
            skipped += 1
            print(f"SKIPPED {name}: --{missing[0].replace('_', '-')} was not given", flush=True)
            continue
        start = time.monotonic()
        try:
            function(server)
        except Exception as error:  # The next check still runs.
            failed += 1
            reason = " ".join(str(error).split()) or type(error).__name__
            print(f"FAILED {name}: {reason[:600]}", flush=True)
            if given.verbose and not isinstance(error, harness.Failed):
                traceback.print_exc(file=sys.stdout)
        else:
            passed += 1
            if given.verbose:
                print(f"ok {name} ({time.monotonic() - start:.2f} s)", flush=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
