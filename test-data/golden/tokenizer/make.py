"""Makes cases.json: token ids of OpenAI's tokenizers over strings of many scripts.

Needs: pip install tiktoken tokenizers; the openai-whisper source package unpacked (its
whisper/assets holds the ranked vocabularies); the model folders `base` and `tiny.en` with their
tokenizer.json. Run: python make.py WHISPER_ASSETS MODELS > cases.json

Every case is checked to be equal between tiktoken (ranked vocabulary) and Hugging Face's
tokenizers (merges) before it is written, so one list of ids serves both sources. The published
tokenizer.json of the multilingual models lacks the first merge rule, (space, t), without which
" the" becomes two tokens; it is put back before comparing.
"""

import base64
import json
import random
import sys
import unicodedata
from pathlib import Path

import tiktoken
from tokenizers import Tokenizer

GPT2_PATTERN = (
    r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
)
SPECIAL = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]

PHRASES = """
The quick brown fox jumps over the lazy dog.
Ask not what your country can do for you — ask what you can do for your country!
It's what they'd've said: "I'LL, we'll, you're, she's, I'm, don't, he'd."
In 1969, $24.00 for 1,000,000 m² at 3.14159e-10?
Falsches Üben von Xylophonmusik quält jeden größeren Zwerg.
Voix ambiguë d'un cœur qui au zéphyr préfère les jattes de kiwis.
El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia; ¿y tú? ¡Sí!
Pchnąć w tę łódź jeża lub ośm skrzyń fig.
Příliš žluťoučký kůň úpěl ďábelské ódy.
Pijamalı hasta yağız şoföre çabucak güvendi. İIıi
Flygande bäckasiner söka hwila på mjuka tuvor.
Съешь же ещё этих мягких французских булок, да выпей чаю.
Чуєш їх, доцю, га? Кумедна ж ти, прощайся без ґольфів!
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.
דג סקרן שט בים מאוכזב ולפתע מצא חברה.
نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر
قلبم از دیدن این‌همه زیبایی می‌تپد
ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश करने वाले
আমার সোনার বাংলা, আমি তোমায় ভালোবাসি।
யாமறிந்த மொழிகளிலே தமிழ்மொழி போல்
ఆంధ్ర ప్రదేశ్ ప్రజలు
ಕನ್ನಡ ಭಾಷೆ
മലയാളം സംസാരിക്കുന്നു
ਪੰਜਾਬੀ ગુજરાતી සිංහල
เป็นมนุษย์สุดประเสริฐเลิศคุณค่า
ພາສາລາວ ភាសាខ្មែរ မြန်မာဘာသာ
བོད་སྐད་ ქართული ენა Հայերեն
አማርኛ ቋንቋ
我能吞下玻璃而不伤身体。
繁體中文：臺灣、香港與澳門。
いろはにほへと ちりぬるを ｶﾞｷﾞｸﾞ アイウエオ
키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.
Tiếng Việt có dấu: ệ ữ ặ ỗ
👍🏽 👨‍👩‍👧‍👦 🇫🇷🇯🇵 ❤️‍🔥 😀😃😄 ☎️ ⌚️
𝕳𝖊𝖑𝖑𝖔 𝟙𝟚𝟛 ⅷ ½ ² ₃ ① Ⅻ ٣٤٥ १२३
♪ la la la ♪♪♪ [Music] (applause) {x} <i>hm</i> ...
e\u0301 vs \u00e9, n\u0303, Z\u0351\u036b\u0343a\u033d
https://example.org/a?b=c&d=%20#frag user@example.org C:\\\\temp\\\\x
fn main() { println!("{:?}", x); } // 0x1F == 31
camelCase snake_case SCREAMING_CASE kebab-case iPhone15Pro 3D B2B
""".strip().split("\n")

SPACES = [
    "", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n ", "a b", "a  b", "a   b", " a", "  a",
    "a ", "a  ", "\ta", "a\tb", "a \t\n b", "a\n b", "a \n\n\n b\n", "\u00a0", "a\u00a0b",
    "\u3000\u3000日", "\u2009x", "a\u2028b", "\u200b", "a\u200bb", "\ufeffx", "\u0085y",
    " " * 40, "x" + " " * 17 + "y", "\n" * 9 + "z",
]
CONTROLS = ["\x00", "a\x00b", "\x01\x02\x1f", "\x7f", "\x1b[0m", "\u0080\u009f", "\ud7ff", "\uffff",
            "\U0010ffff", "\ue000", "\x1c\x1d\x1e", "a\x0bb\x0cc"]
MARKS = ["'", "''", "'s", " 's", "'S", "'re're", "'ll'x", "-", "--", "---", "...", "!?!", "«»", "„“",
         "<|", "|>", "<||>", "<|en|>", "a<|endoftext|>b", "#", "$$", "a.b.c", "1.2.3", "1,234", "007",
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "0000000000000000", "=" * 33, "abcabcabcabcabcabc",
         " the", "the", "The", " THE", "theThe", "Ġthe", "ĊĊ"]
SPECIAL_CASES = ["<|en|>", "a<|endoftext|>b", "<|startoftranscript|><|en|><|transcribe|> Hi<|endoftext|>",
                 "<|en|", " <|notimestamps|> x", "<|en|><|en|>", "<<|en|>>"]


def random_strings(rng):
    """Strings of assigned characters, from one block or from anywhere."""
    blocks = [(0x20, 0x7E), (0xA0, 0x24F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0xDFF),
              (0xE00, 0xFFF), (0x1E00, 0x20CF), (0x2100, 0x27BF), (0x3040, 0x30FF), (0x4E00, 0x9FFF),
              (0xAC00, 0xD7A3), (0x1F300, 0x1F6FF), (0x20, 0x1FFFF)]
    for low, high in blocks:
        for _ in range(5):
            chars = []
            while len(chars) < rng.randint(3, 12):
                c = chr(rng.randint(low, high))
                if unicodedata.category(c) not in ("Cn", "Cs", "Co"):
                    chars.append(c)
                if rng.random() < 0.2:
                    chars.append(rng.choice(" \n'1a"))
            yield "".join(chars)


def ranked(assets, name):
    ranks = {}
    for line in (assets / f"{name}.tiktoken").read_text().splitlines():
        if line:
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    return ranks


def with_first_merge(path):
    data = json.loads(path.read_text())
    merges = data["model"]["merges"]
    if "\u0120 t" not in merges:
        merges.insert(0, "\u0120 t")
    return Tokenizer.from_str(json.dumps(data))


def main():
    assets, models = Path(sys.argv[1]), Path(sys.argv[2])
    rng = random.Random(20)
    texts = [*PHRASES, *SPACES, *CONTROLS, *MARKS, *random_strings(rng)]
    out = {"models": {}}
    for model, name in (("base", "multilingual"), ("tiny.en", "gpt2")):
        hf = with_first_merge(models / model / "tokenizer.json")
        special = {text: hf.token_to_id(text) for text in SPECIAL}
        tik = tiktoken.Encoding(name=name, pat_str=GPT2_PATTERN,
                                mergeable_ranks=ranked(assets, name), special_tokens=special)
        hf.encode_special_tokens = True
        ids = []
        for text in texts:
            expected = tik.encode(text, disallowed_special=())
            assert expected == hf.encode(text, add_special_tokens=False).ids, (model, text)
            ids.append(expected)
        hf.encode_special_tokens = False
        special_ids = []
        for text in SPECIAL_CASES:
            expected = tik.encode(text, allowed_special="all")
            assert expected == hf.encode(text, add_special_tokens=False).ids, (model, text)
            special_ids.append(expected)
        # Any ids decode; invalid UTF-8 is replaced the way Python does.
        random_ids = [[rng.randrange(special["<|endoftext|>"]) for _ in range(8)] for _ in range(30)]
        decoded = [[i, tik.decode_bytes(i).decode("utf-8", errors="replace")] for i in random_ids]
        out["models"][model] = {"ids": ids, "special_ids": special_ids, "decoded": decoded,
                                "special": special}
    out["texts"] = texts
    out["special_texts"] = SPECIAL_CASES
    json.dump(out, sys.stdout, separators=(",", ":"), ensure_ascii=True)
    print()


main()
