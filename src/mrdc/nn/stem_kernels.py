# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-untyped, import-not-found"
"""Triton kernels of the fused stem (see stem.py). Maps are channels_last: (n, h, w, c) in memory.

A program handles some pixels (a tile) of the pooled map, of one image, times all channels. Window
(i, j) covers rows 2i - 1 to 2i + 1 and columns 2j - 1 to 2j + 1 of the map. Offsets within an image
are 32-bit numbers, offsets of images 64-bit.
"""

import triton
import triton.language as tl


@triton.jit
def forward(
    x, weight, bias, mean, rstd, out, peak, tap,
    h: tl.constexpr, w: tl.constexpr, c: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Fill the three outputs of `stem.pool`."""
    across: tl.constexpr = (w + 1) // 2
    count: tl.constexpr = (h + 1) // 2 * across
    image = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * tile + tl.arange(0, tile)
    channel = tl.arange(0, c)
    centre, rate = tl.load(mean + channel), tl.load(rstd + channel)
    scale, shift = tl.load(weight + channel), tl.load(bias + channel)
    x += image * (h * w * c)
    best = tl.full((tile, c), float("-inf"), tl.float32)
    raw = tl.zeros((tile, c), x.dtype.element_ty)
    place = tl.zeros((tile, c), tl.int32)
    for number in tl.static_range(9):
        row = pixel // across * 2 - 1 + number // 3
        column = pixel % across * 2 - 1 + number % 3
        here = ((pixel < count) & (row >= 0) & (row < h) & (column >= 0) & (column < w))[:, None]
        value = tl.load(x + (row * w + column)[:, None] * c + channel[None, :], here, other=0.0)
        y = (value.to(tl.float32) - centre) * rate * scale + shift
        y = y.to(out.dtype.element_ty).to(tl.float32)  # so that ties match the plain code
        better = here & ((y > best) | (y != y))  # NaN wins, as in torch
        best = tl.where(better, y, best)
        raw = tl.where(better, value, raw)
        place = tl.where(better, number, place)
    blocked = best <= 0
    start = image * (count * c)
    out, peak, tap = out + start, peak + start, tap + start
    there, here = pixel[:, None] * c + channel[None, :], (pixel < count)[:, None]
    tl.store(out + there, tl.where(blocked, 0.0, best).to(out.dtype.element_ty), here)
    tl.store(peak + there, raw, here)
    tl.store(tap + there, tl.where(blocked, 9, place).to(tl.uint8), here)


@triton.jit
def sums(
    grad, peak, tap, mean, rstd, parts, count,
    c: tl.constexpr, rows: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Write sums of dy and of dy * xhat, over `rows` pixels each, to parts (programs, 2, c)."""
    first = tl.program_id(0).to(tl.int64) * rows
    channel = tl.arange(0, c)
    centre, rate = tl.load(mean + channel), tl.load(rstd + channel)
    total = tl.zeros((tile, c), tl.float32)
    moment = tl.zeros((tile, c), tl.float32)
    grad, peak, tap = grad + first * c, peak + first * c, tap + first * c
    for start in range(0, rows, tile):
        row = start + tl.arange(0, tile)
        here = (first + row < count)[:, None]
        there = row[:, None] * c + channel[None, :]
        dy = tl.load(grad + there, here, other=0.0).to(tl.float32)
        dy = tl.where(tl.load(tap + there, here, other=9) < 9, dy, 0.0)
        total += dy
        moment += dy * ((tl.load(peak + there, here, other=0.0).to(tl.float32) - centre) * rate)
    parts += tl.program_id(0) * (2 * c)
    tl.store(parts + channel, tl.sum(total, 0))
    tl.store(parts + c + channel, tl.sum(moment, 0))


@triton.jit
def spread(
    grad, x, tap, weight, mean, rstd, means, dx,
    h: tl.constexpr, w: tl.constexpr, c: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Fill the gradient of the map, from the means (2, c) of dy and of dy * xhat over the map.

    Pixels (2i, 2j) to (2i + 1, 2j + 1) belong to windows (i, j) to (i + 1, j + 1).
    """
    across: tl.constexpr = (w + 1) // 2
    down: tl.constexpr = (h + 1) // 2
    image = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * tile + tl.arange(0, tile)
    channel = tl.arange(0, c)
    i, j = pixel // across, pixel % across
    centre, rate = tl.load(mean + channel), tl.load(rstd + channel)
    scale = tl.load(weight + channel) * rate
    level, slope = tl.load(means + channel), tl.load(means + c + channel)
    grad, tap = grad + image * (down * across * c), tap + image * (down * across * c)
    x, dx = x + image * (h * w * c), dx + image * (h * w * c)
    windows = pixel[:, None] * c + channel[None, :]
    here, below = (i < down)[:, None], (i + 1 < down)[:, None]
    right = here & (j + 1 < across)[:, None]
    beyond = below & (j + 1 < across)[:, None]
    g00 = tl.load(grad + windows, here, other=0.0).to(tl.float32)
    t00 = tl.load(tap + windows, here, other=9)
    g01 = tl.load(grad + windows + c, right, other=0.0).to(tl.float32)
    t01 = tl.load(tap + windows + c, right, other=9)
    g10 = tl.load(grad + windows + across * c, below, other=0.0).to(tl.float32)
    t10 = tl.load(tap + windows + across * c, below, other=9)
    g11 = tl.load(grad + windows + (across + 1) * c, beyond, other=0.0).to(tl.float32)
    t11 = tl.load(tap + windows + (across + 1) * c, beyond, other=9)
    for number in tl.static_range(4):
        if number == 0:
            dy = tl.where(t00 == 4, g00, 0.0)
        elif number == 1:
            dy = tl.where(t00 == 5, g00, 0.0) + tl.where(t01 == 3, g01, 0.0)
        elif number == 2:
            dy = tl.where(t00 == 7, g00, 0.0) + tl.where(t10 == 1, g10, 0.0)
        else:
            dy = tl.where(t00 == 8, g00, 0.0) + tl.where(t01 == 6, g01, 0.0)
            dy += tl.where(t10 == 2, g10, 0.0) + tl.where(t11 == 0, g11, 0.0)
        row, column = 2 * i + number // 2, 2 * j + number % 2
        inside = ((row < h) & (column < w))[:, None]
        there = (row * w + column)[:, None] * c + channel[None, :]
        xhat = (tl.load(x + there, inside, other=0.0).to(tl.float32) - centre) * rate
        value = scale * (dy - level - xhat * slope)
        tl.store(dx + there, value.to(dx.dtype.element_ty), inside)
