"""Checks a running server with OpenAI's client and plain HTTP: one named check for each behaviour.

python client.py URL --api-key KEY --model MODEL [--audio-model MODEL] [--wyoming URI] [--only TEXT]...

Prints a line for each failed check, then `N passed, M failed`; the exit status is 1 if one failed.
"""

import argparse
import pathlib
import sys
import time
import traceback

import harness
import errors  # noqa: F401  (modules register their checks)
import chat  # noqa: F401
import completions  # noqa: F401
import native  # noqa: F401
import audio  # noqa: F401
import live  # noqa: F401

AUDIO = pathlib.Path(__file__).resolve().parents[4] / "test-data/audio"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("url", help="base URL without /v1")
    parser.add_argument("--api-key", required=True)
    parser.add_argument("--model", required=True, help="language model")
    parser.add_argument("--audio-model", help="speech model; without it the checks of audio are left out")
    parser.add_argument("--wyoming", help="URI of Wyoming; without it its checks are left out")
    parser.add_argument("--audio", type=pathlib.Path, default=AUDIO, help="folder of the recordings")
    parser.add_argument("--only", action="append", default=[], help="checks whose names contain this")
    parser.add_argument("--verbose", action="store_true", help="print passed checks and tracebacks")
    return parser.parse_args()


def main():
    given = arguments()
    base = given.url.rstrip("/").removesuffix("/v1")
    server = harness.Context(base, given.api_key, given.model, given.audio_model, given.audio, given.wyoming)
    passed, failed = 0, 0
    for name, function in harness.CHECKS:
        if name.startswith(("audio.", "live.")) and not given.audio_model:
            continue
        if name.startswith("live.wyoming") and not given.wyoming:
            continue
        if given.only and not any(text in name for text in given.only):
            continue
        start = time.monotonic()
        try:
            function(server)
        except Exception as error:  # The next check still runs.
            failed += 1
            reason = " ".join(str(error).split()) or type(error).__name__
            print(f"FAILED {name}: {reason[:400]}", flush=True)
            if given.verbose and not isinstance(error, harness.Failed):
                traceback.print_exc()
        else:
            passed += 1
            if given.verbose:
                print(f"ok {name} ({time.monotonic() - start:.2f} s)", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
