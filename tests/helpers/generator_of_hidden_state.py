"""Programs as source text that reach a random number, a time or nothing of the kind, through generated helpers.

A program is a batched function `f`, a chain of up to three links under it, and at the end a function that has HIDDEN,
an expression, at the one line that is marked. Every link is a callable of one float: a function, lambda, closure,
partial, method, table, ... that calls the next one. With a constant in the place of HIDDEN, the program runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

HEAD = """\
import collections, dataclasses, datetime, functools, os, random, secrets, time, types, uuid
from batchnuts.autobatch import primitive
GENERATOR = np.random.default_rng(0)
OF_PYTHON = random.Random(0)
"""

RANDOM = "(?s)do not belong to a lane.*draw with autobatch.random"
TIME = "(?s)is called once, when the program is compiled.*as an argument"

STATE = {
    "np.random.normal": ("np.random.normal()", RANDOM),
    "np.random.rand": ("np.random.rand()", RANDOM),
    "a generator": ("GENERATOR.normal()", RANDOM),
    "a generator without a seed": ("np.random.default_rng().normal()", RANDOM),
    "random.random": ("random.random()", RANDOM),
    "random.gauss": ("random.gauss(0.0, 1.0)", RANDOM),
    "a generator of Python": ("OF_PYTHON.random()", RANDOM),
    "secrets": ("secrets.randbelow(9)", RANDOM),
    "os.urandom": ("os.urandom(1)[0]", RANDOM),
    "uuid": ("uuid.uuid4().int % 9", RANDOM),
    "time.time": ("time.time()", TIME),
    "time.perf_counter_ns": ("time.perf_counter_ns()", TIME),
    "datetime.now": ("datetime.datetime.now().timestamp()", TIME),
    "date.today": ("datetime.date.today().day", TIME),
}
"""What gives another value each time, and what is said of it."""

ENDS = {
    "a function": "def NAME(x):\n    return x + HIDDEN  # error\n",
    "a condition": "def NAME(x):\n    return x if HIDDEN > -1.0 else -x  # error\n",
    "an assignment": "def NAME(x):\n    y = HIDDEN  # error\n    return x * y\n",
    "an argument": "def NAME(x):\n    return x + abs(float(HIDDEN))  # error\n",
    "a comprehension": "def NAME(x):\n    return x + sum([HIDDEN * k for k in (0, 1)])  # error\n",
    "a generator expression": "def NAME(x):\n    return x + sum(HIDDEN * k for k in (0, 1))  # error\n",
    "a lambda inside": "def NAME(x):\n    g = lambda y: y + HIDDEN  # error\n    return g(x)\n",
    "a function inside": "def NAME(x):\n    def g():\n        return HIDDEN  # error\n    return x + g()\n",
    "a branch": "def NAME(x):\n    if LIMIT > 0:\n        return x + HIDDEN  # error\n    return x\nLIMIT = 1\n",
    "a loop": "def NAME(x):\n    for k in range(2):\n        x = x + k * HIDDEN  # error\n    return x\n",
    "a walrus": "def NAME(x):\n    return x + (y := HIDDEN) + 0.0 * y  # error\n",
    "a lambda": "NAME = lambda x: x + HIDDEN  # error\n",
}
"""What has HIDDEN."""

LINKS = {
    "a function": "def NAME(x):\n    return INNER(x) + 1.0\n",
    "a name": "NAME = INNER\n",
    "a lambda": "NAME = lambda x: 0.5 * INNER(x)\n",
    "a closure": (
        "def make_NAME(g):\n    def inner(x):\n        return g(x) - 1.0\n    return inner\nNAME = make_NAME(INNER)\n"
    ),
    "a default": "def NAME(x, g=INNER):\n    return g(x)\n",
    "a default by keyword": "def NAME(x, *, g=INNER):\n    return g(x)\n",
    "a partial": "def of_NAME(scale, x):\n    return scale * INNER(x)\nNAME = functools.partial(of_NAME, 2.0)\n",
    "a partial of it": "NAME = functools.partial(INNER)\n",
    "what a partial is given": "def of_NAME(g, x):\n    return g(x)\nNAME = functools.partial(of_NAME, INNER)\n",
    "what a partial is given by keyword": (
        "def of_NAME(x, g):\n    return g(x)\nNAME = functools.partial(of_NAME, g=INNER)\n"
    ),
    "a function that is given": "def of_NAME(g, x):\n    return g(x)\ndef NAME(x):\n    return of_NAME(INNER, x)\n",
    "a method": "class Of_NAME:\n    def of(self, x):\n        return INNER(x)\nNAME = Of_NAME().of\n",
    "a method of an object": (
        "class Of_NAME:\n    def of(self, x):\n        return INNER(x)\nIT_NAME = Of_NAME()\n"
        "def NAME(x):\n    return IT_NAME.of(x)\n"
    ),
    "an attribute": (
        "class Of_NAME:\n    def __init__(self, g):\n        self.g = g\n"
        "    def of(self, x):\n        return self.g(x)\n"
        "IT_NAME = Of_NAME(INNER)\ndef NAME(x):\n    return IT_NAME.of(x)\n"
    ),
    "a method's method": (
        "class Of_NAME:\n    def deep(self, x):\n        return INNER(x)\n"
        "    def of(self, x):\n        return self.deep(x)\n"
        "NAME = Of_NAME().of\n"
    ),
    "an inherited method": (
        "class Base_NAME:\n    def deep(self, x):\n        return INNER(x)\nclass Of_NAME(Base_NAME):\n"
        "    def of(self, x):\n        return self.deep(x)\nNAME = Of_NAME().of\n"
    ),
    "a method of super": (
        "class Base_NAME:\n    def of(self, x):\n        return INNER(x)\nclass Of_NAME(Base_NAME):\n"
        "    def of(self, x):\n        return super().of(x) + 1.0\n"
        "IT_NAME = Of_NAME()\ndef NAME(x):\n    return IT_NAME.of(x)\n"
    ),
    "a static method": (
        "class Of_NAME:\n    @staticmethod\n    def of(x):\n        return INNER(x)\nNAME = Of_NAME.of\n"
    ),
    "a class method": (
        "class Of_NAME:\n    @classmethod\n    def of(cls, x):\n        return INNER(x)\nNAME = Of_NAME.of\n"
    ),
    "a static method by name": (
        "class Of_NAME:\n    @staticmethod\n    def of(x):\n"
        "        return INNER(x)\ndef NAME(x):\n    return Of_NAME.of(x)\n"
    ),
    "a class method by name": (
        "class Of_NAME:\n    @classmethod\n    def of(cls, x):\n"
        "        return INNER(x)\ndef NAME(x):\n    return Of_NAME.of(x)\n"
    ),
    "a class in a class method": (
        "class Of_NAME:\n    @staticmethod\n    def deep(x):\n        return INNER(x)\n    @classmethod\n"
        "    def of(cls, x):\n        return cls.deep(x)\ndef NAME(x):\n    return Of_NAME.of(x)\n"
    ),
    "a property": (
        "class Of_NAME:\n    @property\n    def one(self):\n        return INNER(1.0)\nIT_NAME = Of_NAME()\n"
        "def NAME(x):\n    return x + IT_NAME.one\n"
    ),
    "a callable object": "class Of_NAME:\n    def __call__(self, x):\n        return INNER(x)\nNAME = Of_NAME()\n",
    "an object that is called": (
        "class Of_NAME:\n    def __call__(self, x):\n        return INNER(x)\nIT_NAME = Of_NAME()\n"
        "def NAME(x):\n    return IT_NAME(x)\n"
    ),
    "an operator": (
        "class Of_NAME:\n    def __add__(self, x):\n        return INNER(x)\nIT_NAME = Of_NAME()\n"
        "def NAME(x):\n    return IT_NAME + x\n"
    ),
    "an object that is made": (
        "class Of_NAME:\n    def __init__(self, x):\n        self.x = INNER(x)\ndef NAME(x):\n    return Of_NAME(x).x\n"
    ),
    "a dataclass": (
        "@dataclasses.dataclass\nclass Of_NAME:\n    g: object\n"
        "IT_NAME = Of_NAME(INNER)\ndef NAME(x):\n    return IT_NAME.g(x)\n"
    ),
    "a namedtuple": (
        "Of_NAME = collections.namedtuple('Of_NAME', 'g')\n"
        "IT_NAME = Of_NAME(INNER)\ndef NAME(x):\n    return IT_NAME.g(x)\n"
    ),
    "a namespace": "IT_NAME = types.SimpleNamespace(g=INNER)\ndef NAME(x):\n    return IT_NAME.g(x)\n",
    "a property of an object": (
        "class Of_NAME:\n    @property\n    def one(self):\n        return (INNER(1.0), 2.0)\nIT_NAME = Of_NAME()\n"
        "def NAME(x):\n    return x + IT_NAME.one[0]\n"
    ),
    "a property that is kept": (
        "class Of_NAME:\n    @functools.cached_property\n    def one(self):\n        return INNER(1.0)\n"
        "def NAME(x):\n    return x + Of_NAME().one\n"
    ),
    "a method of what is made": (
        "class Of_NAME:\n    def __init__(self, shift):\n        self.shift = shift\n    def deep(self, x):\n"
        "        return INNER(x) + self.shift\n    def of(self, x):\n        return self.deep(x)\n"
        "def NAME(x):\n    made = Of_NAME(1.0)\n    return made.of(x)\n"
    ),
    "an inherited making": (
        "class Base_NAME:\n    def __init__(self, x):\n        self.x = INNER(x)\nclass Of_NAME(Base_NAME):\n    pass\n"
        "def NAME(x):\n    return Of_NAME(x).x\n"
    ),
    "a making of super": (
        "class Base_NAME:\n    def __init__(self, x):\n        self.x = INNER(x)\nclass Of_NAME(Base_NAME):\n"
        "    def __init__(self, x):\n        super().__init__(x)\ndef NAME(x):\n    return Of_NAME(x).x\n"
    ),
    "another name of an object": (
        "class Of_NAME:\n    def of(self, x):\n        return INNER(x)\nIT_NAME = Of_NAME()\n"
        "def NAME(x):\n    it = IT_NAME\n    return it.of(x)\n"
    ),
    "an object that is given": (
        "class Of_NAME:\n    def of(self, x):\n        return INNER(x)\nIT_NAME = Of_NAME()\n"
        "def by_NAME(it, x):\n    return it.of(x)\ndef NAME(x):\n    return by_NAME(IT_NAME, x)\n"
    ),
    "an object of an object": (
        "class Of_NAME:\n    def of(self, x):\n        return INNER(x)\nIT_NAME = types.SimpleNamespace(it=Of_NAME())\n"
        "def NAME(x):\n    return IT_NAME.it.of(x)\n"
    ),
    "an index": (
        "class Of_NAME:\n    def __getitem__(self, x):\n        return INNER(x)\nIT_NAME = Of_NAME()\n"
        "def NAME(x):\n    return IT_NAME[x]\n"
    ),
    "a list": "TABLE_NAME = [INNER]\ndef NAME(x):\n    return TABLE_NAME[0](x)\n",
    "a tuple": "TABLE_NAME = (abs, INNER)\ndef NAME(x):\n    return TABLE_NAME[-1](x)\n",
    "a dictionary": "TABLE_NAME = {'g': INNER}\ndef NAME(x):\n    return TABLE_NAME['g'](x)\n",
    "a table of tables": "TABLE_NAME = {'g': (1, [INNER])}\ndef NAME(x):\n    return TABLE_NAME['g'][1][0](x)\n",
    "a table of objects": (
        "class Of_NAME:\n    def of(self, x):\n        return INNER(x)\nTABLE_NAME = [Of_NAME()]\n"
        "def NAME(x):\n    return TABLE_NAME[0].of(x)\n"
    ),
    "a loop over a table": (
        "TABLE_NAME = [INNER]\ndef NAME(x):\n    for g in TABLE_NAME:\n        x = g(x)\n    return x\n"
    ),
    "a map": "def NAME(x):\n    return sum(map(INNER, (x, x)))\n",
    "a reduction": "def NAME(x):\n    return functools.reduce(lambda total, y: total + INNER(y), (x, x), 0.0)\n",
    "a comprehension": "def NAME(x):\n    return sum([INNER(x) for k in (0, 1)])\n",
    "a function inside": "def NAME(x):\n    def g(y):\n        return INNER(y)\n    return g(x)\n",
    "a local name": "def NAME(x):\n    g = INNER\n    return g(x)\n",
    "a choice": "def NAME(x):\n    return (INNER if LIMIT_NAME > 0 else abs)(x)\nLIMIT_NAME = 1\n",
    "a try": "def NAME(x):\n    try:\n        return INNER(x)\n    except ValueError:\n        return x\n",
    "a generator": "def of_NAME(x):\n    yield INNER(x)\ndef NAME(x):\n    return sum(of_NAME(x))\n",
    "a decorator": (
        "def twice_NAME(g):\n    @functools.wraps(g)\n    def wrapped(x):\n"
        "        return 2 * g(x)\n    return wrapped\n"
        "@twice_NAME\ndef NAME(x):\n    return INNER(x)\n"
    ),
    "a recursion": "def NAME(x, n=2):\n    return INNER(x) if n == 0 else NAME(x, n - 1)\n",
}
"""What calls INNER, under a NAME of its own."""

FIRST_LINKS = {
    "a primitive": "@primitive\ndef NAME(x):\n    return INNER(x)\n",
    "a primitive of batches": "@primitive(batched=True)\ndef NAME(x):\n    return INNER(x)\n",
    "a batched function": "@batch\ndef NAME(x):\n    return INNER(x)\n",
}
"""What only a batched function calls."""

USES = {
    "a result": "@batch\ndef f(x):\n    return INNER(x)\n",
    "a condition": "@batch\ndef f(x):\n    if INNER(x) > 0.0:\n        x = -x\n    return x\n",
    "a loop": "@batch\ndef f(x):\n    for k in range(2):\n        x = INNER(x) * 0.5\n    return x\n",
    "a while": "@batch\ndef f(x):\n    while x < 1.0:\n        x = x + 1.0 + 0.0 * INNER(x)\n    return x\n",
    "a lambda": "@batch\ndef f(x):\n    h = lambda y: INNER(y)\n    return h(x)\n",
    "a function inside": "@batch\ndef f(x):\n    def h(y):\n        return INNER(y) + 1.0\n    return h(x)\n",
    "a comprehension": "@batch\ndef f(x):\n    return sum([INNER(x) for k in (0, 1)])\n",
    "a branch that is not taken": "@batch\ndef f(x):\n    if x > 1000.0:\n        x = INNER(x)\n    return x\n",
    "a recursion": "@batch\ndef f(x):\n    if x < 1.0:\n        return f(x + 1.0)\n    return INNER(x)\n",
}
"""Where the batched function calls the first link, or the end itself."""


def _put(text: str, name: str, inner: str) -> str:
    return text.replace("NAME", name).replace("INNER", inner)


def programs(random: Random) -> Iterator[tuple[str, list[str]]]:
    """Programs in which each link is once: the text, with HIDDEN where it stands, and what it is made of."""
    links, first = list(LINKS), list(FIRST_LINKS)
    random.shuffle(links)
    while links or first:
        depth = random.randint(0, 3)
        chosen, links = links[:depth], links[depth:]
        if len(chosen) < depth or (len(chosen) < 3 and first and random.random() < 0.2):
            chosen += [first.pop()] if first else []
        end, use = random.choice(list(ENDS)), random.choice(list(USES))
        parts = [_put(ENDS[end], "g0", "")]
        parts += [_put({**LINKS, **FIRST_LINKS}[link], f"g{k}", f"g{k - 1}") for k, link in enumerate(chosen, 1)]
        parts.append(_put(USES[use], "f", f"g{len(chosen)}"))
        yield HEAD + "".join(parts), [end, *chosen, use]
