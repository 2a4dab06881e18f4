"""What the made trainings learn: nine small models with data that is made from a seed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evaluations.made_curves.settings import Settings

_VAL_ROWS = 192
_TOKENS = 24
_LENGTH = 24
_SIDE = 12
_CLASSES = 8


@dataclass(slots=True)
class Task:
    """A model with its data."""

    model: nn.Module
    x: Tensor
    y: Tensor
    val_x: Tensor
    val_y: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]
    has_val: bool = True
    spare: list[nn.Parameter] = field(default_factory=list)
    """The only weights that a training with frozen weights has left."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What the loss of the last batch gives besides its value."""
    rate: float = 0.0
    """The learning rate of this step, for a task with a second optimizer."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the weights that are trained."""
        return (one for one in self.model.parameters() if one.requires_grad)


def task_of(settings: Settings) -> Task:
    """Build the task of these settings; the same seed gives the same one."""
    torch.manual_seed(settings.seed)
    made = TASKS[settings.family](settings)
    if settings.initial_scale != 1.0:
        with torch.no_grad():
            for one in made.parameters():
                if one.dim() > 1:
                    one.mul_(settings.initial_scale)
    return made


def _split(x: Tensor, y: Tensor, settings: Settings) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return x[_VAL_ROWS:][: settings.rows], y[_VAL_ROWS:][: settings.rows], x[:_VAL_ROWS], y[:_VAL_ROWS]


def _rows(settings: Settings) -> int:
    # The same number of rows is made for a training with few of them: the first ones are the same.
    return max(settings.rows, 4096) + _VAL_ROWS


def _layers(widths: list[int], activation: Callable[[], nn.Module]) -> nn.Sequential:
    parts: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        parts += [nn.Linear(before, after), activation()]
    return nn.Sequential(*parts[:-1])


def _mlp(settings: Settings) -> Task:
    """Regression on a teacher network."""
    x = torch.randn(_rows(settings), 16)
    teacher = _layers([16, 24, 24, 1], nn.Tanh)
    with torch.no_grad():
        for one in teacher.parameters():
            one.mul_(2.5)
        y = teacher(x)
        y = settings.scale * (y / y.std() + settings.noise * torch.randn_like(y))
    activation = (nn.ReLU, nn.Tanh, nn.GELU)[settings.seed % 3]
    model = _layers([16, *[settings.width] * settings.depth, 1], activation)
    last = next(one for one in reversed(model) if isinstance(one, nn.Linear))
    scale = settings.scale
    return Task(
        model,
        *_split(x, y, settings),
        lambda a, b: F.mse_loss(model(a) * scale, b),
        spare=[last.bias],
    )


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = 2
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.attend(self.first(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(F.gelu(self.wide(self.second(x))))  # type: ignore[no-any-return]


class _Gpt(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(_TOKENS, width), nn.Embedding(_LENGTH, width)
        self.blocks = nn.ModuleList(_Block(width) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, _TOKENS)
        for one in self.parameters():
            if one.dim() > 1:
                nn.init.normal_(one, std=0.05)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.place.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def _gpt(settings: Settings) -> Task:
    """Next tokens of a language whose words follow from the two before."""
    rows = _rows(settings)
    likely = torch.softmax(torch.randn(_TOKENS, _TOKENS, _TOKENS) * (3.0 - settings.noise), -1)
    tokens = torch.zeros(rows, _LENGTH + 1, dtype=torch.long)
    tokens[:, :2] = torch.randint(_TOKENS, (rows, 2))
    for place in range(2, _LENGTH + 1):
        now = likely[tokens[:, place - 2] % 6, tokens[:, place - 1]]
        tokens[:, place] = torch.multinomial(now, 1)[:, 0]
    model = _Gpt(settings.width, settings.depth)
    return Task(
        model,
        *_split(tokens[:, :-1], tokens[:, 1:], settings),
        lambda a, b: F.cross_entropy(model(a).flatten(0, 1), b.flatten()),
        spare=[model.head.bias],
    )


def _images(settings: Settings) -> tuple[Tensor, Tensor]:
    rows = _rows(settings)
    smooth = F.interpolate(torch.randn(_CLASSES, 1, 4, 4), size=(_SIDE, _SIDE), mode="bilinear")
    y = torch.randint(_CLASSES, (rows,))
    x = smooth[y] * (0.6 + 0.8 * torch.rand(rows, 1, 1, 1))
    x = torch.where(torch.rand(rows, 1, 1, 1) < 0.5, x.roll(2, 3), x)
    return x + (1.0 + settings.noise) * torch.randn_like(x), y


def _cnn(settings: Settings) -> Task:
    """Classes of small images, some of them labelled wrongly."""
    x, y = _images(settings)
    y = torch.where(torch.rand(len(y)) < settings.noise / 4, torch.randint(_CLASSES, y.shape), y)
    width = settings.width // 4
    head = nn.Linear(4 * width, _CLASSES)
    model = nn.Sequential(
        nn.Conv2d(1, width, 3, stride=2, padding=1),
        nn.GroupNorm(2, width) if settings.seed % 2 else nn.Identity(),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        head,
    )
    return Task(model, *_split(x, y, settings), lambda a, b: F.cross_entropy(model(a), b), spare=[head.bias])


class _Adapted(nn.Module):
    """A frozen layer with a low-rank addition."""

    def __init__(self, inside: nn.Linear, rank: int) -> None:
        super().__init__()
        self.inside = inside.requires_grad_(requires_grad=False)
        self.lora_a = nn.Parameter(torch.randn(rank, inside.in_features) / math.sqrt(inside.in_features))
        self.lora_b = nn.Parameter(torch.zeros(inside.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x) + x @ self.lora_a.T @ self.lora_b.T * 2.0  # type: ignore[no-any-return]


def _lora(settings: Settings) -> Task:
    """A frozen classifier with adapters, on data of a classifier that is a low rank away from it."""
    x = torch.randn(_rows(settings), 24)
    base = _layers([24, 48, 48, _CLASSES], nn.GELU)
    with torch.no_grad():
        frozen = [one for one in base if isinstance(one, nn.Linear)]
        for one in frozen:
            one.weight.mul_(3)
        before = [one.weight.clone() for one in frozen]
        for one in frozen:
            one.weight.add_(torch.randn(one.out_features, 3) @ torch.randn(3, one.in_features) * 0.12)
        sharp = 3.0 / (0.3 + settings.noise)
        y = torch.multinomial(torch.softmax(base(x) * sharp / 3, -1), 1)[:, 0]
        for one, weight in zip(frozen, before, strict=True):
            one.weight.copy_(weight)
    model = nn.Sequential(
        *(_Adapted(one, 2 + settings.depth * 2) if isinstance(one, nn.Linear) else one for one in base)
    )
    last = model[-1]
    assert isinstance(last, _Adapted)
    return Task(
        model, *_split(x, y, settings), lambda a, b: F.cross_entropy(model(a), b), spare=[last.lora_a]
    )


def _policy(settings: Settings) -> Task:
    """A policy gradient with a moving baseline: the loss is near zero and says little."""
    x = torch.randn(_rows(settings), 8)
    worth = torch.randn(8, 6)
    model = _layers([8, *[settings.width] * settings.depth, 6], nn.Tanh)
    baseline = [0.0]
    metrics = {"reward": 0.0}

    def loss(a: Tensor, _: Tensor) -> Tensor:
        said = torch.log_softmax(model(a), -1)
        action = torch.multinomial(said.detach().exp().nan_to_num(0.5).clamp(min=1e-8), 1)
        reward = (a @ worth).gather(1, action)[:, 0] + settings.noise * torch.randn(len(a))
        gained = reward - baseline[0]
        baseline[0] += 0.05 * float(gained.mean())
        metrics["reward"] = float(reward.mean())
        entropy = -(said.exp() * said).sum(-1).mean()
        return -(said.gather(1, action)[:, 0] * gained).mean() - 0.01 * entropy

    head = next(one for one in reversed(model) if isinstance(one, nn.Linear))
    made = Task(model, *_split(x, x, settings), loss, has_val=False, spare=[head.bias])
    made.metrics = metrics
    return made


def _gan(settings: Settings) -> Task:
    """A generator against a discriminator, on points around a ring."""
    angle = torch.randint(_CLASSES, (_rows(settings),)) * (2 * math.pi / _CLASSES)
    x = torch.stack((angle.cos(), angle.sin()), 1) * 2 + 0.15 * torch.randn(len(angle), 2)
    model = _layers([4, *[settings.width] * settings.depth, 2], nn.ReLU)
    judge = _layers([2, *[settings.width] * settings.depth, 1], nn.ReLU)
    optimizer = torch.optim.Adam(judge.parameters(), lr=settings.lr, betas=(0.5, 0.999))
    metrics = {"d_loss": 0.0}

    def loss(a: Tensor, _: Tensor) -> Tensor:
        made_up = model(torch.randn(len(a), 4))
        optimizer.param_groups[0]["lr"] = made.rate
        optimizer.zero_grad()
        both = F.softplus(-judge(a)).mean() + F.softplus(judge(made_up.detach())).mean()
        both.backward()
        optimizer.step()
        metrics["d_loss"] = float(both.detach())
        return F.softplus(-judge(made_up)).mean()

    made = Task(model, *_split(x, x, settings), loss, has_val=False)
    made.metrics = metrics
    return made


def _vae(settings: Settings) -> Task:
    """An autoencoder of small images; its loss is a sum over pixels."""
    x, _ = _images(settings)
    x = x.flatten(1)
    code, pixels = 6, _SIDE * _SIDE
    into = _layers([pixels, settings.width * 2, 2 * code], nn.ReLU)
    out = _layers([code, settings.width * 2, pixels], nn.ReLU)
    model = nn.ModuleList((into, out))

    def loss(a: Tensor, b: Tensor) -> Tensor:
        middle, log_variance = into(a).chunk(2, -1)
        drawn = middle + torch.randn_like(middle) * (log_variance / 2).exp()
        missed = (out(drawn) - b).square().sum(-1)
        divergence = (middle.square() + log_variance.exp() - 1 - log_variance).sum(-1) / 2
        return (missed / 2 + divergence).mean() * settings.scale  # type: ignore[no-any-return]

    last = next(one for one in reversed(out) if isinstance(one, nn.Linear))
    return Task(model, *_split(x, x, settings), loss, spare=[last.bias])


class _Recurrent(nn.Module):
    def __init__(self, width: int, *, is_gated: bool) -> None:
        super().__init__()
        self.inside = (nn.GRU if is_gated else nn.RNN)(3, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inside(x)[0])  # type: ignore[no-any-return]


def _rnn(settings: Settings) -> Task:
    """A recurrent network that follows a filtered signal."""
    x = torch.randn(_rows(settings), 16, 3)
    y = torch.zeros(len(x), 16, 1)
    memory = torch.zeros(len(x))
    for place in range(16):
        memory = 0.8 * memory + x[:, place, 0] * torch.tanh(x[:, place, 1])
        y[:, place, 0] = memory
    y = settings.scale * (y + settings.noise * torch.randn_like(y))
    model = _Recurrent(settings.width, is_gated=settings.seed % 2 == 0)
    scale = settings.scale
    return Task(
        model,
        *_split(x, y, settings),
        lambda a, b: F.mse_loss(model(a) * scale, b),
        spare=[model.head.bias],
    )


def _diffusion(settings: Settings) -> Task:
    """Noise of points on a spiral: the loss is noisy and falls little after its beginning."""
    along = torch.rand(_rows(settings)) * 3 * math.pi
    x = torch.stack((along * along.cos(), along * along.sin()), 1) / 5 + 0.02 * torch.randn(len(along), 2)
    model = _layers([4, *[settings.width] * (settings.depth + 1), 2], nn.SiLU)

    def loss(a: Tensor, _: Tensor) -> Tensor:
        time = torch.rand(len(a), 1)
        noise = torch.randn_like(a)
        kept = (time * math.pi / 2).cos()
        mixed = kept * a + (1 - kept.square()).sqrt() * noise
        return F.mse_loss(model(torch.cat((mixed, time, time.square()), 1)), noise)

    last = next(one for one in reversed(model) if isinstance(one, nn.Linear))
    return Task(model, *_split(x, x, settings), loss, spare=[last.bias])


TASKS: dict[str, Callable[[Settings], Task]] = {
    "mlp": _mlp,
    "gpt": _gpt,
    "cnn": _cnn,
    "lora": _lora,
    "policy": _policy,
    "gan": _gan,
    "vae": _vae,
    "rnn": _rnn,
    "diffusion": _diffusion,
}
