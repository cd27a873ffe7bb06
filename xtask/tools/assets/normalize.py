"""Normalizes texts as Whisper's evaluations do: one JSON object {"text", "kind"} a line in, one JSON string a line out.

`kind` is `english`, `basic` (other languages) or `letters` (languages that are written without spaces).
"""

import json
import sys

from whisper_normalizer.basic import BasicTextNormalizer
from whisper_normalizer.english import EnglishTextNormalizer

normalizers = {
    "english": EnglishTextNormalizer(),
    "basic": BasicTextNormalizer(),
    "letters": BasicTextNormalizer(split_letters=True),
}
for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps(normalizers[request["kind"]](request["text"])), flush=True)
