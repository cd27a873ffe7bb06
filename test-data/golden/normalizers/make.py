"""Makes cases.jsonl: texts with what OpenAI's normalizers make of them.

Needs: pip install more-itertools regex; a folder in which the package `whisper` has the
normalizers of openai/whisper. Run: PYTHONPATH=FOLDER python make.py [FILE…] > cases.jsonl
Each FILE holds one JSON string a line; without any, the texts are made here.

Each line of the output: [text, English, basic, basic letter by letter].
"""

import json
import random
import sys

from whisper.normalizers import BasicTextNormalizer, EnglishTextNormalizer

TEXTS = """
Printing, in the only sense with which we are at present concerned, differs from most if not all.
Um, I'ma say y'all shouldn't've gone; he'd been there, she's gone, they'd done it, it's got legs.
won't can't let's ain't wanna gotta gonna imma woulda coulda shoulda ma'am 's 't n't 'll
Mr. Mrs. St. Dr. Prof. Capt. Gov. Ald. Gen. Sen. Rep. Pres. Rev. Hon. Asst. Assoc. Lt. Col. Jr. Sr. Esq.
The colour of the theatre's programme was analysed at the centre; grey tyres cost a cheque.
[Music] <noise> (laughs) he said (loudly <very>) that [a (b] c) d
$1,234,567.89 is 12,5% of €9.99; 3.5.7 and 10.0.0.1, v2.0. End.5 .5 5.
at 5 o'clock on the 3rd of May, 1984 s, the 1980 s, the 1990s and '90s, 21 st century
one hundred and five, a hundred, one thousand and one nights, two hundred and
twenty twenty, twenty one, twenty eleven, nineteen oh five, nineteen hundred, twenty first
zero point five, point five, point, the point is, o point oh one, three point one four one five nine
double, double trouble, double seven, triple nine eight, double eleven, double twenty, triple o
minus, minus one, plus minus two, negative feedback, positive 3, minus the
five dollars, five dollars and five cents, a dollar, dollars, ten pounds fifty, 3 euros and 20 cents
five percent, percent, five per cent, per cent, five per day, 0.5 percent
three and a half, and a half, one and a half million, cat and a half, two and a half and a half
seven million three hundred thousand and twelve point five thousand, 1.2345 thousand, 0 thousand
first second third fourth fifth sixth seventh eighth nineth ninth tenth eleventh twelfth thirteenth
twentieth thirties forty fifth hundredth thousands of millions billionth decillion decillions
thirty two thousand seven hundred and sixty eight, sixes and sevens, ones and twos, tens
1.0 2.50 007 000 0 00 0.0 $0.05 $0.50 £0.99 $2 and ¢7 ¢5 $5 ¢50 +5 -5 $ 5 5 $ %5 5%
one one two two 11 22 one 1 1s 1st 11s a1 1a b12c3 x1y 3d 10km 5mm 1,000,00,0
123456789012345678901234567890 thousand 99999999999999999999 five
Œuvre œuf Ærø æther straße ẞ đường Đ ðe Þór łódź Łódź naïve café Ångström İstanbul
ﬁne ﬂow ½ ¼ ² ³ ① Ⅳ ℃ № ™ ½ cup 5½ ＦＵＬＬ ｗｉｄｔｈ １２３
١٢٣ १२३ thousand ५ million, ๑๒ and 𝟙𝟚
Voix ambiguë d'un cœur qui, au zéphyr, préfère les jattes de kiwis…
Falsches Üben von Xylophonmusik quält jeden größeren Zwerg!
Съешь же ещё этих мягких французских булок, да выпей чаю. Й й Ё ё
ऋषियों को सताने वाले दुष्ट राक्षसों के राजा
เป็นมนุษย์สุดประเสริฐเลิศคุณค่า น้ำ
我能吞下玻璃而不伤身体。（笑）「はい」、ｶﾞｷﾞｸﾞ アイウエオ が か\u3099
키스의 고유조건은 입술끼리 만나야 하고 각
👍🏽 👨‍👩‍👧‍👦 🇫🇷🇯🇵 ❤️‍🔥 ♪ la ♪
a\u200db a\u200cb a\u00adb a\u200bb \ufeffa a\u0301 e\u0301\u0302 \u0905\u0902
tab\there line\nbreak nbsp\u00a0here sep\u001cfile\u001funit next\u0085line ls\u2028x
x 's y 'll z'm don 't I ' m rock 'n' roll ''' 'd been
uh-huh mm-hmm hmm. Uh, um... mhm mmm ummm uhs humm _um_ um1
ΣΊΣΥΦΟΣ ΟΔΟΣ. ΟΣ ǅ ﬀ ŉ ẖ
$a ¢b £.5 .% a% %% 5 % $.5 5.a a.5 ..5 5.. £€5 $$5
""".strip().split("\n")

NUMBER_WORDS = """zero oh o one two three five ten eleven nineteen twenty thirty ninety hundred thousand
million hundreds thousandth billions first second third tenth twenties fiftieth and and point point double
triple minus plus dollars dollar cents pounds percent per cent cat the 5 12 100 3.5 $7 £2.50 007 a half
1s 2nd""".split()


def made():
    yield from TEXTS
    rng = random.Random(30)
    for _ in range(300):
        yield " ".join(rng.choice(NUMBER_WORDS) for _ in range(rng.randint(2, 8)))


def main():
    english, basic = EnglishTextNormalizer(), BasicTextNormalizer()
    letters = BasicTextNormalizer(split_letters=True)
    texts = made()
    if sys.argv[1:]:
        texts = [json.loads(line) for path in sys.argv[1:] for line in open(path, encoding="utf-8")]
    for text in texts:
        row = [text, english(text), basic(text), letters(text)]
        print(json.dumps(row, ensure_ascii=True))


main()
