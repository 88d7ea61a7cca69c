"""Snippets for `safeops lint`: risky ones with their rule, and sound ones, for all frameworks."""

import json
from typing import NamedTuple

from safeops import _recipes
from safeops._lint.linting import lint

SPELLED = ("torch", "jax", "tensorflow")
IMPORTS = {
    "torch": "import math\n\nimport numpy as np\nimport torch\nimport torch.nn.functional as F\n",
    "jax": "import math\n\nimport jax\nimport jax.numpy as jnp\n",
    "tensorflow": "import math\n\nimport tensorflow as tf\n",
    "keras": "from keras import ops\n",
    "numpy": "import numpy as np\n",
    "xp": "",
}
HEAD = {"xp": "def f(x, y, mask, xp):\n"}


class Snippet(NamedTuple):
    """A function of x, y and mask; its rule, or none if it is sound."""

    framework: str
    body: str
    rule: str = ""
    head: str = ""

    @property
    def source(self):
        """The program."""
        head = self.head or HEAD.get(self.framework, "def f(x, y, mask):\n")
        lines = "".join(f"    {line}\n" for line in self.body.split("\n"))
        return f"{IMPORTS[self.framework]}\n\n{head}{lines}"

    def __str__(self):
        """Return a name for the test."""
        return f"{self.rule or 'sound'}-{self.framework}-{self.body}"


def spelled(body, rule=""):
    """Return a snippet in the spelling of each framework."""
    return [Snippet(name, _recipes.spell(body, name), rule) for name in SPELLED]


# In the names of the array API standard, for three frameworks each.
RISKY_ANYWHERE = {
    "SO001": """
return xp.where(x > 0, xp.log(x), 0.0)
return xp.where(x > 0, xp.sqrt(x), 0.0)
return xp.where(x != 0, 1 / x, 0.0)
return xp.where(x == 0, 0.0, y / x)
return xp.where(x > 0, x * xp.log(x), 0.0)
return xp.where(x > 0, x**0.5, xp.zeros_like(x))
return xp.where(x <= 0, 0.0, y / xp.sqrt(x))
return xp.where(xp.abs(x) < 1, xp.acos(x), 0.0)
return xp.where(x > 0, x, xp.exp(x) - 1)
return xp.where(x > 20, x, xp.log1p(xp.exp(x)))
return xp.where(xp.abs(x) > 1e-6, xp.sin(x) / x, 1.0)
return xp.where((x > 0) & (y > 0), xp.log(x) + xp.log(y), 0.0)
return xp.where(x < 1, xp.log(1 - x), 0.0)
return xp.where(x > y, xp.sqrt(x - y), 0.0)
return xp.where(x > -1, xp.log1p(x), 0.0)
return xp.where(x > 0, x**-2, 0.0)
ok = x > 0; return xp.where(ok, xp.log(x), 0.0)
z = xp.log(x); return xp.where(x > 0, z, 0.0)
squares = xp.sum(x * x); r = xp.sqrt(squares); return xp.where(squares > 1e-6, xp.sin(r) / r, 1.0)
""",
    "SO002": """
return x / (xp.sqrt(xp.sum(x**2)) + 1e-6)
length = xp.sqrt(xp.sum(x * x)); return x / (length + 1e-6)
""",
    "SO003": """
return xp.sqrt(xp.clip(x, 0.0, 10.0))
return xp.acos(xp.clip(x, -1.0, 1.0))
return xp.log(xp.clip(x, 0.0, 10.0))
inside = xp.clip(x, -1.0, 1.0); return xp.asin(inside)
""",
    "SO004": """
z = x / y; return xp.where(xp.isnan(z), 0.0, z)
z = xp.log(x); return xp.where(xp.isfinite(z), z, 0.0)
return xp.where(xp.isinf(1 / x), 0.0, 1 / x)
""",
    "SO005": """
return mask * xp.log(x)
return -xp.log(x) * mask
""",
    "SO006": """
return xp.sum(x * mask) / xp.sum(mask)
count = xp.sum(mask); return xp.sum(x * mask) / count
""",
    "SO008": """
return xp.sqrt(xp.sum((x - y) ** 2))
return xp.sqrt(x * x + y * y)
return xp.sum(x**2) ** 0.5
""",
    "SO009": r"""
if xp.sum(xp.abs(x)) <= 1e-6: raise ValueError
length = xp.sqrt(xp.sum(x * x) + 1e-30)\nif length < 1e-6: raise ValueError\nreturn x / length
""",
    "SO010": """
return xp.acos(xp.clip(xp.sum(x * y), -1.0, 1.0))
""",
}
RISKY_HERE = [
    ("torch", "SO001", "return torch.where(x > 0, x.log(), 0.0)"),
    ("torch", "SO001", "return x.log().masked_fill(x <= 0, 0.0)"),
    ("torch", "SO001", "return x.rsqrt().masked_fill(x <= 0, 0.0)"),
    ("torch", "SO001", "return torch.log(x)[x > 0]"),
    ("torch", "SO001", "z = torch.log(x)\nz[x <= 0] = 0.0\nreturn z"),
    ("torch", "SO001", "return torch.where(x > 0, x.pow(-0.5), 0.0)"),
    ("torch", "SO001", "return torch.where(torch.logical_and(x > 0, y > 0), torch.log(x), 0.0)"),
    ("torch", "SO001", "return torch.where(x.gt(0), torch.sqrt(x), torch.zeros_like(x))"),
    ("torch", "SO003", "return torch.sqrt(x.clamp(min=0))"),
    ("torch", "SO003", "return x.clamp_min(0).sqrt()"),
    ("torch", "SO003", "return torch.log(1 - x.clamp(0, 1))"),
    ("torch", "SO003", "return torch.sqrt((1 + x.clamp(-1, 1)) / 2)"),
    ("torch", "SO003", "return x.clamp(min=0) ** 0.25"),
    ("torch", "SO008", "return torch.sqrt(F.mse_loss(x, y))"),
    ("torch", "SO008", "mse = torch.nn.MSELoss()\nreturn torch.sqrt(mse(x, y))"),
    ("torch", "SO003", "return torch.atanh(x.clamp(-1, 1))"),
    ("torch", "SO004", "return torch.nan_to_num(x / y)"),
    ("torch", "SO004", "return (x / y).nan_to_num()"),
    ("torch", "SO004", "z = x.pow(-0.5)\nreturn z.masked_fill(z == float('inf'), 0)"),
    ("torch", "SO004", "z = 1 / x\nz[torch.isinf(z)] = 0\nreturn z"),
    ("torch", "SO005", "return (x > 0).float() * torch.log(x)"),
    ("torch", "SO005", "return torch.log(x) * (x > 0)"),
    ("torch", "SO006", "return (x * mask).sum(-1) / mask.sum(-1)"),
    ("torch", "SO006", "mask = mask.float()\nreturn (x * mask).sum() / mask.sum()"),
    ("torch", "SO007", "return torch.softmax(x.masked_fill(mask, float('-inf')), dim=-1)"),
    ("torch", "SO007", "x = x.masked_fill(mask == 0, -math.inf)\nreturn F.softmax(x, dim=-1)"),
    ("torch", "SO007", "return torch.where(mask, x, -torch.inf).softmax(-1)"),
    ("torch", "SO010", "return torch.acos(torch.dot(x, y))"),
    ("torch", "SO008", "d = torch.sqrt((x * x).sum(-1))\nm = 2 * d\nn = m + 1\nreturn n"),
    (
        "torch",
        "SO008",
        "m = 0.0\nfor _ in range(3):\n    m = m + torch.sqrt((x * x).sum())\nreturn m",
    ),
    ("torch", "SO010", "return torch.acos(F.cosine_similarity(x, y, dim=-1))"),
    ("jax", "SO001", "return jnp.where(x > 0, jax.lax.rsqrt(x), 0.0)"),
    ("jax", "SO001", "return jax.lax.select(x > 0, jnp.log(x), jnp.zeros_like(x))"),
    ("jax", "SO001", "return jnp.where(x > 0, jnp.power(x, 0.3), 0.0)"),
    ("jax", "SO001", "return jnp.where(x > 0, jnp.arctan2(y, x) / jnp.sqrt(x), 0.0)"),
    ("jax", "SO001", "return jnp.where(x > 0, jax.scipy.special.gammaln(x), 0.0)"),
    ("jax", "SO001", "n = jnp.linalg.norm(x)\nreturn x / jnp.where(n == 0, 1.0, n)"),
    ("tensorflow", "SO001", "n = tf.norm(x)\nreturn x / tf.where(n == 0, 1.0, n)"),
    ("jax", "SO001", "return jnp.where(x == 0, y, ((y + 1) ** jnp.tanh(x) - 1) / x)"),
    ("jax", "SO002", "return x / (jnp.linalg.norm(x) + 1e-8)"),
    ("jax", "SO002", "return x / jnp.maximum(jnp.linalg.norm(x), 1e-8)"),
    ("jax", "SO002", "return (x - x.mean()) / (jnp.std(x) + 1e-6)"),
    ("jax", "SO003", "return jnp.sqrt(jnp.maximum(x, 0))"),
    ("jax", "SO003", "return jnp.arccos(jnp.clip(x, -1, 1))"),
    ("jax", "SO004", "return jnp.nan_to_num(jnp.log(x))"),
    ("jax", "SO005", "return jnp.log(x) * (x > 0)"),
    ("jax", "SO007", "return jax.nn.softmax(jnp.where(mask, x, -jnp.inf), axis=-1)"),
    ("jax", "SO008", "return jnp.linalg.norm(x[:, None] - x[None, :], axis=-1)"),
    ("jax", "SO009", "if jnp.any(jnp.linalg.norm(x) < 1e-8):\n    raise ValueError"),
    ("jax", "SO010", "return jnp.arccos(jnp.clip(x @ y, -1.0, 1.0))"),
    ("tensorflow", "SO001", "return tf.where(x > 0, tf.math.rsqrt(x), 0.0)"),
    ("tensorflow", "SO001", "return tf.where(tf.greater(x, 0), tf.math.log(x), 0.0)"),
    ("tensorflow", "SO001", "return tf.compat.v1.where_v2(x > 0, tf.math.log(x), 0.0)"),
    ("tensorflow", "SO002", "return x / (tf.norm(x) + 1e-6)"),
    ("tensorflow", "SO003", "return tf.sqrt(tf.maximum(x, 0.0))"),
    ("tensorflow", "SO005", "return tf.cast(x > 0, x.dtype) * tf.math.log(x)"),
    ("tensorflow", "SO007", "return tf.nn.softmax(tf.where(mask, x, -math.inf), axis=-1)"),
    ("keras", "SO001", "return ops.where(x > 0, ops.log(x), 0.0)"),
    ("keras", "SO003", "return ops.sqrt(ops.maximum(x, 0.0))"),
    ("keras", "SO006", "return ops.sum(x * mask) / ops.sum(mask)"),
    ("xp", "SO001", "return xp.where(x > 0, xp.log(x), 0.0)"),
    ("torch", "SO001", "return torch.where(x > 0, x ** (1 / 3), 0.0)"),
    ("torch", "SO001", "return torch.where(x > 0, torch.pow(x, 1 / 3.0), 0.0)"),
    ("torch", "SO001", "keep = x != 0\nz = 1 / x\nz[~keep] = 0\nreturn z"),
    ("torch", "SO003", "z = torch.tanh(x)\nreturn torch.log(1 - z**2)"),
    ("torch", "SO004", "z = torch.sqrt(x)\nz = torch.where(torch.isnan(z), 0.0, z)\nreturn z"),
    ("torch", "SO004", "return torch.nan_to_num((y - x) / x)"),
    ("torch", "SO005", "p = torch.softmax(x, -1)\nreturn -(p * torch.log(p)).sum(-1)"),
    ("torch", "SO005", "return torch.logsumexp(y[:, None] + torch.log(x), 0)"),
    ("jax", "SO005", "return jax.nn.log_softmax(jnp.log(x))"),
    ("torch", "SO005", "return 1 - torch.exp(torch.log1p(-x).sum())"),
    ("torch", "SO005", "q = y\nreturn (1 - mask) * float('-inf') + x"),
    (
        "torch",
        "SO007",
        (
            "z = torch.zeros_like(x).masked_fill(mask, float('-inf'))\n"
            "return torch.nan_to_num(torch.softmax(x + z, -1))"
        ),
    ),
    ("torch", "SO008", "z = torch.linalg.cross(y - x, x)\nreturn z / z.norm(dim=-1)"),
    ("jax", "SO008", "z = jnp.cross(y - x, x)\nreturn z / jnp.linalg.norm(z)"),
    ("tensorflow", "SO003", "return tf.sqrt(tf.nn.relu(x))"),
    ("torch", "SO011", "return torch.log(x.half() + 1e-12)"),
    ("torch", "SO011", "z = x.to(torch.float16)\nreturn 1 / torch.clamp(z, min=1e-8)"),
    ("torch", "SO011", "z = x.bfloat16()\nreturn torch.log(1 - z.clamp(1e-6, 1 - 1e-6))"),
    ("jax", "SO011", "z = x.astype(jnp.bfloat16)\nreturn jnp.log(1 - jnp.clip(z, 0.1, 0.999))"),
    ("torch", "SO011", "with torch.autocast('cuda'):\n    return torch.log(x.sigmoid() + 1e-12)"),
]
BESIDE_SOUND = [
    # Beside the classes that are sound: what must be found in spite of them.
    ("torch", "SO006", "mask = helper(y)\nmask = mask.expand_as(x)\nreturn x.sum() / mask.sum()"),
    ("torch", "SO006", (
        "def keep_of(y):\n    return y > 0\nmask = keep_of(y)\nreturn x.sum() / mask.sum()"
    )),
    ("torch", "SO006", "return (y.softmax(-1) * mask).sum() / mask.sum()"),
    ("torch", "SO008", "c = torch.zeros(3)\nc[0] = x\nreturn torch.sqrt((c * c).sum())"),
    ("torch", "SO004", "s = scatter(x, y, reduce='sum')\nreturn torch.nan_to_num(1 / s)"),
    ("jax", "SO001", "s = jax.ops.segment_sum(x, y)\nreturn jnp.where(s > 0, jnp.log(s), 0.0)"),
    ("torch", "SO008", "z = x % 2\nreturn torch.sqrt(z * z + z * z)"),
    ("torch", "SO001", (
        "z = torch.zeros(3)\nz.scatter_add_(0, y, x)\nreturn torch.where(z > 0, z.log(), 0.0)"
    )),
    ("torch", "SO008", "self.w = torch.sqrt((x * x).sum())"),
    ("jax", "SO008", "def by_length() -> Array:\n    return jnp.sqrt(jnp.sum(x**2))"),
    ("xp", "SO002", "return x / (xp.linalg.vector_norm(x) + 1e-6)"),
    ("jax", "SO001", "i = jnp.sum(x)\nz = y / i\nreturn y.at[i != 0].set(z)"),
    ("torch", "SO008", (
        "class A(torch.nn.Module):\n    def __init__(self, mu=0.02):\n        self.mu = mu\n"
        "        self.mu = helper(mu)\n"
        "    def forward(self, x):\n        return (x * x + self.mu * self.mu).sqrt()"
    )),
    ("torch", "SO008", "z = x / (x.norm() + 1e-7)\nreturn torch.sqrt((z * z).sum())"),
    ("torch", "SO006", "def g(x, positive):\n    return (positive * x).sum() / positive.sum()"),
    # A function that is passed on is differentiated by whoever takes it.
    ("torch", "SO008", (
        "g = lambda z: torch.sqrt((z * z).sum())\nassert np.isfinite(slope(g, x))"
    )),
    # Found by names, in other programs than those of x, y and mask.
    ("torch", "SO001", "def g(x, keep):\n    z = 1 / x\n    z[~keep] = 0\n    return z"),
    ("torch", "SO005", "def g(p, q):\n    return (p * (p / q).log()).sum()"),
    ("torch", "SO006", "def g(risk, EVENT):\n    return -(risk * EVENT).sum() / EVENT.sum()"),
    ("torch", "SO007", "def g(s, keep):\n    return F.softmax(s + torch.log(keep.float()), -1)"),
    ("torch", "SO010", "return torch.acos((x.trace() - 1) / 2)"),
    # What is printed is the derivative.
    ("jax", "SO001", (
        "def g(x):\n    return jnp.sum(jnp.where(x > 0, jnp.log(x), 0.0))\nprint(jax.grad(g)(x))"
    )),
    ("torch", "SO008", (
        "def g(x):\n    return (x * x).sum().sqrt()\nprint(torch.autograd.grad(g(x), x)[0])"
    )),
    # A name that stands for itself.
    ("torch", "SO001", (
        "global a, b\na, b = b, a\nreturn torch.where(x > 0, torch.log(x), a)"
    )),
]  # fmt: skip
SOUND_ANYWHERE = r"""
inside = xp.where(x > 0, x, 1.0); return xp.where(x > 0, xp.log(inside), 0.0)
return xp.where(x > 0, xp.log(xp.where(x > 0, x, 1.0)), 0.0)
safe_x = xp.where(x != 0, x, 1.0); return xp.where(x != 0, y / safe_x, 0.0)
zero = x == 0; safe_x = xp.where(zero, xp.ones_like(x), x); return xp.where(zero, 0.0, y / safe_x)
return xp.where(x > 0, xp.log(xp.clip(x, 1e-6, 1e6)), 0.0)
x = xp.clip(x, 1e-6, 1e6); return xp.where(x > 0, xp.log(x), 0.0)
return xp.where(x > 0, xp.log(x + 1e-6), 0.0)
return xp.where(x > 0, xp.sqrt(x + 1e-12), 0.0)
return xp.where(x > 0, xp.exp(-xp.abs(x)), 0.0)
return xp.where(x > 0, xp.sin(x), xp.cos(x))
return xp.where(x > 0, x**2, 0.0)
return xp.where(x > 0, x / 2, 0.0)
return xp.where(x > 0, xp.log(1 + xp.exp(-xp.abs(x))), 0.0)
return xp.where(x > 0, xp.log(y), 0.0)
return xp.where(mask > 0, y / x, 0.0)
return xp.where(x > 0, y / (1 + x * x), 0.0)
return xp.where(x > 0, xp.sqrt(1 + x**2), 0.0)
return xp.where(x > 0, xp.tanh(x), xp.exp(-x * x))
return xp.where(x > 1, xp.log(y) * x, x)
return xp.sqrt(xp.sum(x**2) + 1e-12)
return xp.sqrt(xp.sum(x**2) + xp.exp(y))
return x / xp.sqrt(xp.sum(x**2) + 1e-12)
return xp.sqrt(xp.clip(x, 1e-6, 1e6))
return xp.log(xp.clip(x, 1e-6, 1.0))
return xp.acos(xp.clip(x, -1 + 1e-6, 1 - 1e-6))
return xp.acos(0.99 * xp.tanh(x))
return xp.sum(x * mask) / (xp.sum(mask) + 1e-6)
return xp.sum(x * mask) / xp.clip(xp.sum(mask), 1.0, 1e6)
count = xp.sum(mask); return xp.sum(x * mask) / count if count > 0 else 0.0
return xp.sum(x) / xp.sum(y)
return mask * x / y
return mask * xp.exp(x)
return mask * xp.log(x + 1e-6)
return mask * xp.log(xp.clip(x, 1e-6, 1.0))
return xp.isnan(x / y)
return xp.where(xp.isfinite(x), x, 0.0)
return xp.where(xp.isnan(x), 0.0, x)
if xp.any(x <= 0): raise ValueError\nreturn xp.where(x > 0, xp.log(x), 0.0)
if not xp.sum(xp.abs(x)) > 1e-6: raise ValueError
assert xp.all(x > 0); return xp.where(x > 0, xp.log(x), 0.0)
return xp.where(x > 0, xp.log(x), 0.0) > 1
"""
SOUND_HERE = [
    ("torch", "return torch.linalg.norm(x)"),
    ("torch", "return x / (x.norm() + 1e-6)"),
    ("torch", "return x / x.norm().clamp(min=1e-6)"),
    ("torch", "return torch.cdist(x, x)"),
    ("torch", "return torch.sqrt(torch.relu(x))"),
    ("torch", "return torch.where(x > 0, torch.log(x.clamp(min=1e-6)), 0.0)"),
    ("torch", "return torch.where(x > 0, torch.log(x.clamp_min(1e-6)), 0.0)"),
    ("torch", "with torch.no_grad():\n    return torch.where(x > 0, torch.log(x), 0.0)"),
    ("torch", "return torch.where(x > 0, torch.log(x), 0.0).detach()"),
    ("torch", "return torch.where(x > 0, torch.log(x.detach()), 0.0)"),
    ("torch", "return torch.where(x > 0, torch.log(x), 0.0).item()"),
    ("torch", "x = x.masked_fill(x <= 0, 1.0)\nreturn torch.where(x > 0, torch.log(x), 0.0)"),
    ("torch", "x = x.clone()\nx[x <= 0] = 1.0\nreturn x.log()"),
    ("torch", "x.clamp_(min=1e-6)\nreturn torch.where(x > 0, torch.log(x), 0.0)"),
    ("torch", "return torch.nan_to_num(x)"),
    ("torch", "return torch.nan_to_num(torch.exp(x))"),
    ("torch", "return torch.nan_to_num(x / 2)"),
    ("torch", "return x.log()[x > 0] if x.min() > 0 else x"),
    ("torch", "keep = x > 0\nreturn torch.log(x[keep])"),
    ("torch", ("causal = torch.ones(3, 3).triu(1).bool()\n"
     "return torch.softmax(x.masked_fill(causal, float('-inf')), -1)")),
    ("torch", ("mask = torch.triu(torch.ones(3, 3), 1) > 0\n"
     "return torch.softmax(x.masked_fill(mask, float('-inf')), -1)")),
    ("torch", "return torch.nan_to_num(torch.softmax(x.masked_fill(mask, float('-inf')), -1))"),
    ("torch", ("p = torch.softmax(x.masked_fill(mask, float('-inf')), -1)\n"
     "return p.masked_fill(mask, 0.0)")),
    ("torch", "return torch.softmax(x.masked_fill(mask, -1e9), -1)"),
    ("torch", "return torch.softmax(x.masked_fill(mask, torch.finfo(x.dtype).min), -1)"),
    ("torch", "return F.softplus(x)"),
    ("torch", "return F.normalize(x, dim=-1)"),
    ("torch", "return -torch.log_softmax(x, -1) * mask"),
    ("torch", "n = x.shape[0]\nreturn torch.where(x > 0, x / n, 0.0)"),
    ("torch", "return (x * mask).sum() / mask.sum().clamp(min=1)"),
    ("torch", "return (x * mask).sum() / max(mask.sum(), 1)"),
    ("torch", "if mask.sum() == 0:\n    return x.sum() * 0\nreturn (x * mask).sum() / mask.sum()"),
    ("torch", "if mask.any():\n    x = (x * mask).sum() / mask.sum()\nreturn x"),
    ("torch", "return torch.xlogy(x, y)"),
    ("torch", "from safeops import safe_log\nreturn torch.where(x > 0, safe_log(x), 0.0)"),
    ("torch", "from safeops import safe_where\nreturn safe_where(x > 0, x, torch.log)"),
    ("torch", "return math.sqrt(2) * torch.where(x > 0, x / math.sqrt(2), 0.0)"),
    ("torch", "return torch.where(x > 0, torch.atan2(y, x), 0.0)"),
    ("torch", "return torch.std(x) + 1e-6"),
    ("torch", "if not (torch.abs(x.norm() - 1) < 1e-6).all():\n    raise ValueError"),
    (
        "torch",
        "class F(torch.autograd.Function):\n    def forward(_, x):\n        return x.log()[x > 0]",
    ),
    ("torch", "n = scatter(x.new_ones(3), y)\nn = 1 / n\nn[n == float('inf')] = 0\nreturn n"),
    ("torch", "z = y / x.clamp(min=torch.finfo(x.dtype).tiny)\nz[x == 0] = 1\nreturn z"),
    ("torch", "return torch.acos(x.clamp(-1 + 1e-4, 1 - 1e-4))"),
    # A selection before the softmax cuts the slope, and one behind it the value.
    ("torch", "z = torch.where(mask, x, -torch.inf)\nreturn torch.softmax(z / 2, -1).nan_to_num()"),
    ("jax", "return jnp.where(jnp.isfinite(x), x, jnp.inf * jnp.logical_xor(y > 0, x > 0))"),
    # The opposite words: weights, no probability, a constant, half precision that is asked for.
    ("torch", "def g(w, x):\n    return (w * x).sum() / w.sum()"),
    ("torch", "def g(n, sigma):\n    return n * torch.log(n) + sigma * torch.log(sigma)"),
    ("torch", "inv_eta = helper(y)\nreturn (x**2 + inv_eta**2).sqrt()"),
    ("torch", "if x.dtype == torch.float16:\n    return x\nreturn torch.log(x + 1e-12)"),
    ("torch", "z = x.half().float()\nreturn torch.log(z + 1e-12)"),
    ("torch", "z = x.half()\nreturn torch.log(z + 1e-6)"),
    ("torch", "with torch.autocast('cuda'):\n    return 1 / (x.norm() + 1e-12)"),
    ("torch", ("self.register_buffer('bias', torch.tril(torch.ones(3, 3)))\n"
     "z = x.masked_fill(self.bias == 0, -math.inf)\nreturn F.softmax(z, -1)")),
    # A determinant of a Cholesky factor; the mean of logarithms undoes nothing.
    ("torch", "def g(l):\n    return torch.exp(torch.sum(torch.log(l.diagonal())))"),
    ("torch", "return torch.logsumexp(torch.log(x + 1e-6) + y, 0)"),
    ("torch", "g = lambda z: torch.sqrt((z * z).sum())\nreturn np.isfinite(g(x))"),
    # A number by its default, an eps that is added before the square, a place that is no mask.
    ("torch", "def g(x, mu=0.02):\n    return torch.sqrt(x * x + mu * mu)"),
    ("torch", (
        "class A(torch.nn.Module):\n    def __init__(self, mu=0.02):\n        self.mu = mu\n"
        "    def forward(self, x):\n        mu = self.mu\n        return (x * x + mu * mu).sqrt()"
    )),
    ("torch", "w, h = x - y + 1e-7, y - x + 1e-7\nreturn torch.sqrt(w**2 + h**2)"),
    ("jax", "def g(i, x, y):\n    z = jnp.sum(x) / i\n    return y.at[i].set(z)"),
    ("torch", (
        "def g(labels_one_hot):\n    z = 1 / labels_one_hot.sum(0)\n"
        "    z[torch.isinf(z)] = 0\n    return z"
    )),
    # What has no gradient: constants, whatever is made of them, and what NumPy gives.
    ("torch", "i = torch.arange(3.0).repeat_interleave(2)\nreturn torch.sqrt(i * i + i * i)"),
    ("torch", "h, w = x.shape[-2:]\ng = helper(h, w)\nreturn torch.sqrt((g * g).sum(-1))"),
    ("torch", "i, j = torch.where(x > 0)\nreturn ((i - j) ** 2 + (j - i) ** 2) ** 0.5"),
    ("torch", "k = np.array(x)\nreturn ((k[0] - k[1]) ** 2 + (k[2] - k[3]) ** 2) ** 0.5"),
    ("torch", "z, i = torch.unique(x, return_inverse=True)\nreturn torch.sqrt((z * z).sum())"),
    ("torch", "with torch.no_grad():\n    z = x / y\nreturn torch.nan_to_num(z * 1 / z)"),
    # No gradient comes back: places, numbers of Python, functions that only no_grad calls.
    ("torch", "z = x.clamp(min=0).rsqrt()\np = z * y\nreturn torch.argmin(p)"),
    ("torch", "z = torch.sqrt((x * x).sum(-1))\n_, i = torch.max(z * 2, 0)\nreturn i"),
    ("torch", "z = torch.sqrt((x * x).sum())\nreturn float(z)"),
    ("torch", "z = torch.sqrt((x * x).sum())\nprint(f'{z}')"),
    ("torch", "z = torch.sqrt((x * x).sum())\nreturn np.log(z)"),
    ("torch", (
        "class A(torch.optim.Optimizer):\n    def step(_, x):\n        return x.clamp(min=0).sqrt()"
    )),
    ("torch", (
        "class A(torch.nn.Module):\n    def __init__(_, x):\n        _.y = x.clamp(min=0).sqrt()"
    )),
    ("torch", "def unitary_init(x):\n    return x / (torch.sqrt((x * x).sum()) + 1e-4)"),
    ("torch", "def clip(grads):\n    return grads / (torch.sqrt((grads * grads).sum()) + 1e-4)"),
    ("torch", "k = torch.cat((torch.arange(3.0), torch.arange(3.0)))\nreturn (k**2 + k**2).sqrt()"),
    ("torch", "def nanmean(x):\n    keep = ~x.isnan()\n    return x.nansum() / keep.sum()"),
    ("torch", ("z, _ = torch.sort(x)\nsupport = z - torch.cumsum(z, 0) > 0\n"
     "return (z * support).sum() / support.sum()")),
    ("jax", "_, adv = gae(x)\nreturn (adv - adv.mean()) / (adv.std() + 1e-8)"),
    ("jax", "v = jax.random.normal(key, (3,))\nreturn v / jnp.sqrt(jnp.sum(v**2))"),
    ("torch", "class A(Constraint):\n    def __call__(_, x):\n        return (x * x).sum().sqrt()"),
    ("torch", "def init_weights(w):\n    return w.clamp(min=0).sqrt()"),
    ("torch", "n = torch.div(x, y, rounding_mode='floor')\nreturn (y > 0) * n"),
    ("torch", "mask = sequence_mask(y).float()\nreturn (x * mask).sum() / mask.sum()"),
    ("torch", ("a.mask = make_pad_mask(y)\nx = x.masked_fill(a.mask, -math.inf)\n"
     "return torch.softmax(x, 0)")),
    ("torch", "return (sigma_next**2 - sigma_down**2).clamp(min=0).sqrt()"),
    ("torch", "def g(x, scale: float = 0.5):\n    return (x**2 + scale**2) ** 0.5"),
    ("jax", "def g(x, k: int | jax.Array):\n    return jnp.nan_to_num(x + jnp.log(1 / k))"),
    ("jax", "return jnp.where(x > 0, jnp.log(jnp.maximum(x, 1e-6)), 0.0)"),
    ("jax", "x = jnp.maximum(x, 1e-6)\nreturn jnp.where(x > 0, 1 / x, 0.0)"),
    ("jax", "x = x.at[x <= 0].set(1.0)\nreturn jnp.where(x > 0, jnp.log(x), 0.0)"),
    ("jax", "return jnp.sqrt(jax.nn.relu(x))"),
    ("jax", "return jax.lax.cond(x > 0, jnp.log, jnp.zeros_like, x)"),
    ("jax", "return jnp.where(x > 0, jnp.log(jax.lax.stop_gradient(x)), 0.0)"),
    ("jax", "return jax.nn.softmax(x, where=mask)"),
    ("jax", "return jax.nn.softplus(x)"),
    ("torch", "return torch.bucketize(torch.sqrt((x * x).sum()), y)"),
    ("torch", "d = torch.sqrt((x * x).sum(-1))\nnear = d < 1\nreturn near"),
    ("torch", "return torch.where(y > 0, x / (high - low), 0.0)"),
    ("torch", "return mask / mask.sum()"),
    ("torch", "safe_x = helper(x)\nreturn torch.where(x > 0, y / safe_x, 0.0)"),
    ("jax", "@jax.custom_jvp\ndef g(x):\n    return jnp.where(x > 0, jnp.log(x), 0.0)"),
    ("jax", "return jnp.linalg.norm(x - y)"),
    ("jax", "d = jnp.linalg.norm(x) + 1e-6\nreturn d"),
    ("jax", "return jnp.where(x > 0, jnp.log(x), jnp.nan)"),
    ("jax", "tiny = jnp.finfo(x.dtype).tiny\nreturn jnp.log(jnp.maximum(x, tiny))"),
    ("jax", "eps = 1e-6\nreturn jnp.where(x > 0, jnp.sqrt(x + eps), 0.0)"),
    ("jax", "return jax.scipy.special.xlogy(x, x)"),
    ("jax", ("causal = jnp.tril(jnp.ones((3, 3), bool))\n"
     "return jax.nn.softmax(jnp.where(causal, x, -jnp.inf))")),
    ("tensorflow", "return tf.math.divide_no_nan(x, y)"),
    ("tensorflow", "return tf.math.divide_no_nan(tf.reduce_sum(x * mask), tf.reduce_sum(mask))"),
    ("tensorflow", "return tf.where(x > 0, tf.math.log(tf.maximum(x, 1e-6)), 0.0)"),
    ("tensorflow", "return tf.where(x > 0, tf.math.log(tf.stop_gradient(x)), 0.0)"),
    ("tensorflow", "return tf.math.xlogy(x, x)"),
    ("tensorflow", "return tf.sqrt(tf.maximum(x, 1e-12))"),
    ("tensorflow", "return tf.linalg.l2_normalize(x)"),
    ("keras", "return ops.where(x > 0, ops.log(ops.maximum(x, 1e-6)), 0.0)"),
    ("keras", "return ops.sqrt(ops.maximum(x, 1e-6))"),
    ("numpy", "return np.where(x > 0, np.log(x), 0.0)"),
    ("numpy", "return np.sqrt(np.clip(x, 0, None))"),
    ("xp", "return xp.where(x > 0, xp.log(xp.where(x > 0, x, 1.0)), 0.0)"),
    ("xp", "return xp.sqrt(xp.sum(x * x) + 1e-12)"),
    # Masks that keep something in each row: a view of one, or made by a function of the file.
    ("torch", ("mask = sequence_mask(y).float()\nmask = mask.expand_as(x)\n"
     "return (x * mask).sum() / mask.sum()")),
    ("torch", ("mask = make_pad_mask(y)\nkeep_mask = mask.unsqueeze(-1)\n"
     "more_mask = keep_mask.expand_as(x)\nreturn (x * more_mask).sum() / more_mask.sum()")),
    ("jax", ("mask = jnp.arange(9) < y\nb_mask = mask[:, None]\n"
     "c_mask = jnp.broadcast_to(b_mask, x.shape)\nreturn jnp.sum(x * c_mask) / jnp.sum(c_mask)")),
    ("torch", ("def keep_of(y):\n    return torch.arange(9) < y[:, None]\n"
     "mask = keep_of(y)\nreturn (x * mask).sum() / mask.sum()")),
    ("torch", ("class A(torch.nn.Module):\n    def seen(_, y):\n"
     "        return _.at(y.to_lengths()).flip(-1).cumsum(-1).bool()\n"
     "    def forward(_, x, y):\n        mask = _.seen(y)\n        return x.sum() / mask.sum(1)")),
    ("tensorflow", ("def keep_of(y):\n    return tf.sequence_mask(y)\nmask = keep_of(y)\n"
     "return tf.reduce_sum(x * mask) / tf.reduce_sum(mask)")),
    # The share of what is equal, which has no gradient.
    ("jax", "return jnp.sum((jnp.argmax(x) == y) * mask) / jnp.sum(mask)"),
    ("torch", "return ((x.argmax(-1) == y) * mask).sum() / mask.sum()"),
    ("torch", "return ((x > 0).eq(y) * mask).sum() / mask.sum()"),
    # An array that begins with ones and is written in part; a window.
    ("torch", "c = torch.eye(3)\nc[1, 0] = x\nreturn c / c.pow(2).sum(-1).sqrt()"),
    ("torch", "c = torch.ones(3, 3)\nc[1:] = x\nreturn c / torch.sqrt((c * c).sum(-1))"),
    ("torch", "c = torch.diag_embed(y)\nc[..., 0, 1] = x\nreturn c.pow(2).sum(-1).sqrt()"),
    ("torch", "return x / window.pow(2.0).sum().sqrt()"),
    ("jax", "return x / jnp.sqrt(jnp.sum(window**2))"),
    ("tensorflow", "return x / tf.sqrt(tf.reduce_sum(hann_window**2))"),
    # A sum of positive numbers over a segment is 0 where that is empty: no entry has its slope.
    ("torch", "s = segment(x.exp(), y, reduce='sum')\nreturn s.log().nan_to_num(neginf=0.0)"),
    ("torch", "s = scatter(torch.exp(x), y, reduce='add')\nreturn torch.nan_to_num(1 / s)"),
    ("jax", "s = jax.ops.segment_sum(jnp.exp(x), y)\nreturn jnp.where(s > 0, jnp.log(s), 0.0)"),
    ("tensorflow", ("s = tf.math.unsorted_segment_sum(tf.exp(x), y, 3)\n"
     "return tf.where(s > 0, tf.math.log(s), 0.0)")),
    # Whole numbers.
    ("torch", "g = torch.arange(9) - y // 2\nreturn torch.sqrt(g**2 + g**2)"),
    ("torch", "g = torch.arange(9) % len(x)\nreturn torch.sqrt(g * g + g * g)"),
    ("jax", "g = x // 2\nreturn jnp.sqrt(g**2 + g**2)"),
    # What goes into a variable, or into running numbers, and what is fitted.
    ("tensorflow", "w.assign(tf.sqrt(tf.reduce_sum(x * x)))"),
    ("torch", "w.data = torch.sqrt((x * x).sum())"),
    ("torch", "w.data.copy_(torch.sqrt((x * x).sum()))"),
    ("torch", "def update_running_stats(x):\n    return x.clamp(min=0).sqrt()"),
    ("torch", "def _update_moving_std(x):\n    return torch.sqrt((x * x).mean())"),
    ("jax", "def fit(x):\n    return jnp.sqrt(jnp.mean(x**2))"),
    ("tensorflow", "def _maximum_likelihood(x):\n    return tf.sqrt(tf.reduce_mean(x**2))"),
    # The steps of an optimizer, by what the function returns.
    ("jax", ("def by_length() -> base.GradientTransformation:\n    def length(x):\n"
     "        return jnp.sqrt(jnp.sum(x**2))\n    return base.of(length)")),
    ("jax", ("def by_length() -> optax.GradientTransformationExtraArgs:\n    def length(x):\n"
     "        return jnp.sqrt(jnp.sum(x**2))\n    return base.of(length)")),
    ("torch", ("def made() -> torch.optim.Optimizer:\n    def length(x):\n"
     "        return (x * x).sum().sqrt()\n    return base.of(length)")),
]  # fmt: skip


def bodies(text):
    """Return the bodies of functions, one a line; a semicolon begins a new line."""
    for line in text.strip().splitlines():
        yield line.replace("\\n", "\n").replace("; ", "\n")


RISKY = [x for rule, text in RISKY_ANYWHERE.items() for b in bodies(text) for x in spelled(b, rule)]
RISKY += [Snippet(framework, body, rule) for framework, rule, body in RISKY_HERE]
# Found too, and not executed: they call functions that a snippet does not have.
READ = [Snippet(framework, body, rule) for framework, rule, body in BESIDE_SOUND]
SOUND = [x for b in bodies(SOUND_ANYWHERE) for x in spelled(b)]
SOUND += [Snippet(framework, body) for framework, body in SOUND_HERE]

# Ten published helpers for a logarithm or a quotient that shall be safe: their patterns, written
# anew. Seven have the bug.
HELPERS = {
    "where, positive": ("jax", "return jnp.where(x > 0, jnp.log(x), y)", "SO001"),
    "where, zeros like": ("torch", "return torch.where(x > 0, x.log(), 0 * x)", "SO001"),
    "entropy": ("jax", "return jnp.where(x == 0, 0.0, -x * jnp.log(x))", "SO001"),
    "quotient": ("tensorflow", "return tf.where(y == 0.0, tf.zeros_like(x), x / y)", "SO001"),
    "nan to num": ("torch", "return torch.nan_to_num(torch.log(x), neginf=0.0)", "SO004"),
    "clip at zero": ("jax", "return jnp.log(jnp.clip(x, 0.0))", "SO003"),
    "times a mask": ("torch", "return torch.log(x) * (x > 0)", "SO005"),
    "floor": ("torch", "return torch.log(x.clamp(min=1e-8))", ""),
    "eps inside": ("tensorflow", "return tf.math.log(x + 1e-7)", ""),
    "two wheres": ("jax", "z = jnp.where(x > 0, x, 1)\nreturn jnp.where(x > 0, jnp.log(z), 0)", ""),
}  # fmt: skip


# A program, a notebook, and what the command needs to read them.
PROGRAM = """import jax.numpy as jnp


def f(x):
    return jnp.where(x > 0, jnp.log(x), 0.0)
"""
EDITED = "safe_where(x > 0, x, jnp.log, fill_value=0.0)"
CELLS = (
    ("markdown", "# Text"),
    ("code", "%matplotlib inline\nimport jax.numpy as jnp"),
    ("code", "!ls\ny = jnp.where(x > 0, jnp.log(x), 0.0)\n?jnp"),
    ("code", "%%bash\nls where log"),
)


def rules_in(source, **options):
    """Return the rules of what is found in a program."""
    return [found.rule for found in lint(source, **options).findings]


def write(folder, **texts):
    """Write files of Python, and return their folder as text."""
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    return str(folder)


def notebook(*cells):
    """Return a notebook as Jupyter writes it."""
    made = [
        {"cell_type": kind, "metadata": {}, "source": text.splitlines(keepends=True)}
        for kind, text in cells
    ]
    return json.dumps({"cells": made, "metadata": {}, "nbformat": 4}, indent=1) + "\n"
