#!/usr/bin/env python3
"""Trains a reference GPT in PyTorch as fast as PyTorch can, a few steps at a time, for benchmarks/peers/train.sh.

Speaks the same protocol as the program train_bench: warms up, prints `ready`, and then answers every line `n` on
standard input with `<seconds> <loss>`: the time of n training steps and the loss of the last one.
Before that it times a few variants (optimizer loop, kind of bfloat16) and keeps the fastest; it names it on standard error.
Works with PyTorch 1.13 and newer; what a newer one offers (fused attention, fused AdamW) is used.
"""
import argparse
import gc
import math
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

# name: vocabulary, positions, layers, heads, width, batch, time
MODELS = {"124M": (50304, 1024, 12, 12, 768, 4, 256), "10.8M": (65, 256, 6, 6, 384, 8, 256)}
HAS_SDPA = hasattr(F, "scaled_dot_product_attention")


class Block(nn.Module):
    def __init__(self, width, heads, layers):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        for linear in (self.c_proj, self.mlp_proj):
            linear.std = 0.02 / math.sqrt(2 * layers)

    def attention(self, x, mask):
        b, t, c = x.shape
        q, k, v = self.c_attn(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        if HAS_SDPA:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            q, k, v = (part.reshape(b * self.heads, t, -1) for part in (q, k, v))
            scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=1 / math.sqrt(q.shape[-1]))
            y = torch.bmm(F.softmax(scores, dim=-1), v).view(b, self.heads, t, -1)
        return self.c_proj(y.transpose(1, 2).reshape(b, t, c))

    def forward(self, x, mask):
        x = x + self.attention(self.ln_1(x), mask)
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocabulary, positions, layers, heads, width):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.h = nn.ModuleList(Block(width, heads, layers) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=getattr(module, "std", 0.02))
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, tokens, targets, mask):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x, mask)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def splitmix64(x):
    bits = (1 << 64) - 1
    x = (x + 0x9E3779B97F4A7C15) & bits
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & bits
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & bits
    return x ^ (x >> 31)


def make_adamw(parameters, variant):
    groups = [
        dict(params=[p for p in parameters if p.dim() >= 2], weight_decay=0.1),
        dict(params=[p for p in parameters if p.dim() < 2], weight_decay=0.0),
    ]
    options = {"loop": {}, "foreach": {"foreach": True}, "fused": {"fused": True}}[variant]
    return torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), eps=1e-8, **options)


class Trainer:
    """One full training step: forward, backward, clip by the global norm, AdamW. The batch is the same every time."""

    def __init__(self, model, precision, adamw, compiled):
        *shape, batch, length = MODELS[model]
        torch.manual_seed(1)
        stream = [splitmix64(i) % shape[0] for i in range(batch * (length + 1))]
        rows = torch.tensor(stream).view(batch, length + 1)
        self.tokens, self.targets = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
        self.model = Gpt(*shape)
        self.mask = torch.full((length, length), float("-inf")).triu(1)
        self.autocast = precision == "autocast"
        self.masters = None
        if precision == "pure":
            self.masters = [nn.Parameter(p.detach().clone()) for p in self.model.parameters()]
            self.model.bfloat16()
            self.mask = self.mask.bfloat16()
        self.parameters = list(self.model.parameters())
        self.owned = self.masters or self.parameters
        self.adamw = make_adamw(self.owned, adamw)
        self.run = torch.compile(self.model) if compiled else self.model

    def step(self):
        for p in self.parameters:
            p.grad = None
        if self.autocast:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = self.run(self.tokens, self.targets, self.mask.bfloat16())
        else:
            loss = self.run(self.tokens, self.targets, self.mask)
        loss.backward()
        if self.masters:
            for master, p in zip(self.masters, self.parameters):
                master.grad = p.grad.float()
        nn.utils.clip_grad_norm_(self.owned, 1.0)
        self.adamw.step()
        if self.masters:
            with torch.no_grad():
                for master, p in zip(self.masters, self.parameters):
                    p.copy_(master)
        return loss


def variants(args):
    """(precision, adamw, compiled), the first optimizer form being the one a newer PyTorch has."""
    adamw = []
    for name in ("fused", "foreach", "loop"):
        try:
            probe = nn.Parameter(torch.ones(2, 2))
            probe.grad = torch.ones(2, 2)
            make_adamw([probe], name).step()
            adamw.append(name)
        except (TypeError, RuntimeError, ValueError):
            pass
    if "fused" in adamw:
        adamw = ["fused"]
    precisions = ["float32"] if args.dtype == "f32" else ["autocast", "pure"]
    compiled = [False, True] if args.compile else [False]
    return [(p, a, c) for p in precisions for a in adamw for c in compiled]


def describe(variant):
    return f"{variant[0]},{variant[1]},{'compiled' if variant[2] else 'eager'}"


def fastest(args):
    candidates, best = variants(args), None
    for variant in candidates if len(candidates) > 1 else []:
        trainer = Trainer(args.model, *variant)
        trainer.step()
        times = []
        for _ in range(4):
            start = time.perf_counter()
            trainer.step()
            times.append(time.perf_counter() - start)
        print(f"peer: {describe(variant)} {min(times) * 1e3:.0f} ms a step", file=sys.stderr, flush=True)
        if best is None or min(times) < best[0]:
            best = (min(times), variant)
        del trainer
        gc.collect()
    return best[1] if best else candidates[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="124M")
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--warmup", type=int, default=2, help="steps before `ready`")
    parser.add_argument("--compile", action="store_true", help="try torch.compile too (PyTorch 2)")
    parser.add_argument("--variant", help="skip the choice: float32|autocast|pure,loop|foreach|fused,eager|compiled")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    if args.variant:
        precision, adamw, compiled = args.variant.split(",")
        variant = (precision, adamw, compiled == "compiled")
    else:
        variant = fastest(args)
    trainer = Trainer(args.model, *variant)
    print(f"peer: PyTorch {torch.__version__}, {describe(variant)}", file=sys.stderr, flush=True)
    for _ in range(args.warmup):
        trainer.step()
    print("ready", flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        for _ in range(int(line)):
            loss = trainer.step()
        loss = loss.item()
        print(f"{time.perf_counter() - start:.6f} {loss:.6f}", flush=True)


if __name__ == "__main__":
    main()
