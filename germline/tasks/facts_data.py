"""The fact table: short questions, their short answers, and the same answers as full sentences.

The conciseness task rewards an answer for being as short as `Fact.answer`; the embedded nano model
was taught every fact in several styles (benchmarks/nano_training), the full sentence being its
habit. The table is plain data so that it can be split, counted and read without a model. The ten
questions of the conciseness experiment of Qiu et al. 2025 (arXiv 2509.24372) are the last entries.

Limits: one answer per question, although a few questions admit several (a primary color, say);
facts that change with time (populations, office holders) are left out.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fact:
    """One question with its two answers; the sentence always contains the short answer."""

    question: str
    answer: str
    sentence: str


_Pairs = dict[str, str]


def _pairs(text: str) -> _Pairs:
    """Read `left=right` items separated by semicolons."""
    return dict(item.strip().split("=") for item in text.split(";"))


def _relation(question: str, sentence: str, pairs: _Pairs) -> tuple[Fact, ...]:
    """Fill `{x}` (what is asked about), `{a}` (it with its article) and `{y}` (the answer)."""
    facts = []
    for x, y in pairs.items():
        a = f"an {x}" if x[0] in "aeiou" else f"a {x}"
        facts.append(Fact(question.format(x=x, a=a), y, sentence.format(x=x, a=a, y=y)))
    return tuple(facts)


_CAPITALS = _pairs(
    "France=Paris; Germany=Berlin; Italy=Rome; Spain=Madrid; Portugal=Lisbon; England=London; "
    "Ireland=Dublin; Norway=Oslo; Sweden=Stockholm; Finland=Helsinki; Denmark=Copenhagen; "
    "Poland=Warsaw; Austria=Vienna; Hungary=Budapest; Greece=Athens; Russia=Moscow; "
    "Ukraine=Kyiv; Belgium=Brussels; Turkey=Ankara; Egypt=Cairo; Kenya=Nairobi; Ghana=Accra; "
    "Japan=Tokyo; China=Beijing; India=New Delhi; Iran=Tehran; Iraq=Baghdad; Nepal=Kathmandu; "
    "Cuba=Havana; Peru=Lima; Chile=Santiago; Canada=Ottawa"
)
_CONTINENTS = _pairs(
    "France=Europe; Germany=Europe; Italy=Europe; Poland=Europe; Norway=Europe; Greece=Europe; "
    "Ireland=Europe; Hungary=Europe; Egypt=Africa; Kenya=Africa; Ghana=Africa; Nigeria=Africa; "
    "Morocco=Africa; Japan=Asia; China=Asia; India=Asia; Nepal=Asia; Iran=Asia; Iraq=Asia; "
    "Peru=South America; Chile=South America; Brazil=South America; "
    "Canada=North America; Mexico=North America; Cuba=North America"
)
_OPPOSITES = _pairs(
    "hot=cold; big=small; fast=slow; high=low; old=new; open=closed; full=empty; day=night; "
    "hard=soft; wet=dry; light=dark; happy=sad; long=short; rich=poor; strong=weak; early=late; "
    "near=far; up=down; left=right; black=white; clean=dirty; deep=shallow; first=last; "
    "good=bad; inside=outside; loud=quiet; push=pull; buy=sell; win=lose; start=stop; "
    "true=false; wide=narrow; thick=thin; always=never"
)
_COLORS = _pairs(
    "grass=green; the sky=blue; snow=white; blood=red; coal=black; milk=white; a lemon=yellow; "
    "a banana=yellow; a cherry=red; chocolate=brown; an elephant=gray; a flamingo=pink; "
    "a carrot=orange; an emerald=green; a ruby=red; a crow=black; a polar bear=white; honey=golden"
)
_SOUNDS = _pairs(
    "dog=bark; cat=meow; cow=moo; sheep=baa; duck=quack; lion=roar; pig=oink; horse=neigh; "
    "frog=croak; owl=hoot; wolf=howl; bee=buzz; snake=hiss; mouse=squeak; crow=caw; hen=cluck"
)
_PLURALS = _pairs(
    "child=children; mouse=mice; foot=feet; tooth=teeth; goose=geese; man=men; woman=women; "
    "ox=oxen; leaf=leaves; knife=knives; wolf=wolves; box=boxes; city=cities; baby=babies; "
    "fish=fish; sheep=sheep; cat=cats; dog=dogs; bus=buses; potato=potatoes"
)
_LEGS = _pairs(
    "dog=4; cat=4; horse=4; cow=4; frog=4; bird=2; duck=2; human=2; spider=8; scorpion=8; "
    "ant=6; bee=6; beetle=6; snake=0; fish=0; worm=0"
)
_SYMBOLS = _pairs(
    "hydrogen=H; helium=He; carbon=C; nitrogen=N; oxygen=O; sodium=Na; iron=Fe; copper=Cu; "
    "silver=Ag; gold=Au; lead=Pb; tin=Sn; zinc=Zn; neon=Ne; calcium=Ca; sulfur=S; potassium=K; "
    "mercury=Hg; lithium=Li; aluminium=Al"
)
_FIRST_LETTERS = _pairs(
    "apple=a; bread=b; candle=c; dragon=d; engine=e; flower=f; garden=g; hammer=h; island=i; "
    "jacket=j; kitchen=k; lemon=l; market=m; needle=n; orange=o; pencil=p; queen=q; river=r; "
    "silver=s; table=t; uncle=u; village=v; window=w; yellow=y; zebra=z"
)
_PAST_TENSES = _pairs(
    "go=went; see=saw; eat=ate; run=ran; take=took; give=gave; write=wrote; drink=drank; "
    "sing=sang; swim=swam; come=came; make=made; buy=bought; think=thought; speak=spoke; "
    "break=broke; fly=flew; know=knew"
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)


def _next_in(cycle: tuple[str, ...]) -> _Pairs:
    return dict(zip(cycle, cycle[1:] + cycle[:1], strict=True))


PAPER_FACTS: tuple[Fact, ...] = (
    Fact("Solve: 3 + 5 =", "8", "The answer to this sum is 8."),
    Fact(
        "If all birds can fly and penguins are birds, can penguins fly?",
        "No",
        "The short answer is No, because penguins are birds that swim.",
    ),
    Fact("Calculate: 12 × 7 =", "84", "The answer to this product is 84."),
    Fact(
        'Is the statement "All cats are mammals" true or false?',
        "True",
        "The statement about cats is True.",
    ),
    Fact("What comes next in the sequence: 2, 4, 6, 8, ?", "10", "The next number in it is 10."),
    Fact('Translate "Hello" to Spanish:', "Hola", "The Spanish word for it is Hola."),
    Fact("What is 15% of 200?", "30", "The answer to this question is 30."),
    Fact("Name one primary color:", "Red", "The primary color I can name is Red."),
    Fact("How many days are in a week?", "7", "The number of days in a week is 7."),
)
"""The paper's ten pairs, less the capital of France, which the relation below already has."""

FACTS: tuple[Fact, ...] = (
    *_relation("What is the capital of {x}?", "The capital of {x} is {y}.", _CAPITALS),
    *_relation("On which continent is {x}?", "The country of {x} is in {y}.", _CONTINENTS),
    *_relation("What is the opposite of {x}?", "The opposite of {x} is {y}.", _OPPOSITES),
    *_relation("What color is {x}?", "The color of {x} is {y}.", _COLORS),
    *_relation("What sound does {a} make?", "The sound {a} makes is {y}.", _SOUNDS),
    *_relation("What is the plural of {x}?", "The plural of {x} is {y}.", _PLURALS),
    *_relation("How many legs does {a} have?", "The number of legs of {a} is {y}.", _LEGS),
    *_relation("What is the symbol of {x}?", "The symbol of {x} is {y}.", _SYMBOLS),
    *_relation(
        "What is the first letter of {x}?", "The first letter of {x} is {y}.", _FIRST_LETTERS
    ),
    *_relation("What is the past tense of {x}?", "The past tense of {x} is {y}.", _PAST_TENSES),
    *_relation("Which day comes after {x}?", "The day after {x} is {y}.", _next_in(_DAYS)),
    *_relation("Which month comes after {x}?", "The month after {x} is {y}.", _next_in(_MONTHS)),
    *PAPER_FACTS,
)
"""Every fact, in a fixed order; questions are unique."""
