#!/usr/bin/env python3
"""Times PyTorch on the cases that accrue-bench timed on the same GPU, and puts both side by side in Markdown.

  torch_kernels.py <result of accrue-bench run --device cuda --json> [--seconds 0.1]

Exit code 77, with the reason, where this python has no torch that sees a GPU. Cases PyTorch has no single operation
for are left out. Both are timed alike: many calls enqueued, one wait, the median over samples.
"""
import argparse
import json
import re
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    print('skipped: this python has no torch')
    sys.exit(77)


def numbers(size):
    match = re.match(r'\d+(?:x\d+)*', size)
    return tuple(map(int, match[0].split('x'))) if match else ()


def uniform(*shape, dtype=torch.float32):
    return (torch.rand(shape, device='cuda') * 2 - 1).to(dtype)


def grad_of(function, *inputs):
    """A call that runs the backward of function(*inputs) alone, on a graph that is kept."""
    leaves = [x.requires_grad_() for x in inputs]
    y = function(*leaves)
    dy = torch.rand_like(y)
    return lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True)


def unary(function, kernel, x):
    if kernel.endswith('_forward'):
        return lambda: function(x)
    return grad_of(function, x)


def swiglu(gate, up):
    return F.silu(gate) * up


def optimizer(size, dtype, make):
    p = torch.nn.Parameter(uniform(size))
    p.grad = uniform(size)
    if dtype == torch.bfloat16:
        return None  # PyTorch keeps no float32 master weights in its optimizers
    opt = make([p])
    opt.step()
    return opt.step


def attention(kernel, size, dtype):
    match = re.match(r'(\d+)x(\d+)x(\d+)x(\d+) (causal|full)', size)
    if not match:
        return None
    b, t, h, d = map(int, match.groups()[:4])
    q, k, v = (uniform(b, h, t, d, dtype=dtype) for _ in range(3))

    def run(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=match[5] == 'causal')
    return (lambda: run(q, k, v)) if kernel.startswith('attention_forward') else grad_of(run, q, k, v)


def linear(kernel, size, dtype):
    rows, inner, outer = numbers(size)
    x, w, dy = uniform(rows, inner, dtype=dtype), uniform(outer, inner, dtype=dtype), uniform(rows, outer, dtype=dtype)
    if kernel == 'linear_forward':
        return lambda: F.linear(x, w)
    if kernel.startswith('linear_gelu'):
        b = uniform(outer, dtype=dtype)
        return lambda: F.gelu(F.linear(x, w, b), approximate='tanh')
    if 'dx' in kernel:
        return lambda: dy @ w
    total = torch.zeros(outer, inner, device='cuda')
    if dtype == torch.float32:
        return lambda: total.addmm_(dy.t(), x)
    return lambda: total.add_(dy.t() @ x)  # PyTorch's way to a float32 gradient


def norm(kernel, shape, dtype):
    x, w, b = uniform(*shape, dtype=dtype), uniform(shape[-1], dtype=dtype), uniform(shape[-1], dtype=dtype)
    if kernel.startswith('residual'):
        f, alone = uniform(*shape, dtype=dtype), kernel.removeprefix('residual_')

        def of_sum():
            total = x + f
            return F.layer_norm(total, shape[-1:], w, b) if alone.startswith('layer') else F.rms_norm(total, shape[-1:], w)
        return of_sum if alone.startswith('layer') or hasattr(F, 'rms_norm') else None
    if kernel.startswith('layer'):
        def run(x, w, b):
            return F.layer_norm(x, shape[-1:], w, b)
        return (lambda: run(x, w, b)) if kernel.endswith('forward') else grad_of(run, x, w, b)
    if not hasattr(F, 'rms_norm'):
        return None

    def run(x, w):
        return F.rms_norm(x, shape[-1:], w)
    return (lambda: run(x, w)) if kernel.endswith('forward') else grad_of(run, x, w)


def call_of(case):
    """PyTorch's call for a case of accrue-bench, or None."""
    kernel, size = case['kernel'], case['size']
    dtype = getattr(torch, case['dtype'])
    shape = numbers(size)
    op = re.sub(r'_(forward|backward).*', '', kernel)
    if op in ('gelu', 'relu', 'silu'):
        function = (lambda x: F.gelu(x, approximate='tanh')) if op == 'gelu' else getattr(F, op)
        return unary(function, kernel, uniform(*shape, dtype=dtype))
    if op in ('add', 'sub', 'mul') and kernel.endswith('_forward'):
        a, b, function = uniform(*shape, dtype=dtype), uniform(*shape, dtype=dtype), getattr(torch, op)
        return lambda: function(a, b)
    if op == 'scale':
        x = uniform(*shape, dtype=dtype)
        return lambda: x * 0.3
    if op == 'cast':
        x, to = uniform(*shape, dtype=dtype), torch.bfloat16 if dtype == torch.float32 else torch.float32
        return lambda: x.to(to)
    if kernel == 'fill':
        x = uniform(*shape, dtype=dtype)
        return lambda: x.fill_(0.5)
    if op == 'swiglu':
        gate, up = uniform(*shape, dtype=dtype), uniform(*shape, dtype=dtype)
        return (lambda: swiglu(gate, up)) if kernel.endswith('forward') else grad_of(swiglu, gate, up)
    if kernel == 'dropout_forward':
        x = uniform(*shape, dtype=dtype)
        return lambda: F.dropout(x, 0.1)
    if kernel == 'residual_add_forward':
        x, f = uniform(*shape, dtype=dtype), uniform(*shape, dtype=dtype)
        return lambda: x + F.dropout(f, 0.1)
    if op.removeprefix('residual_') in ('layer_norm', 'rms_norm'):
        return norm(kernel, shape, dtype)
    if op == 'softmax':
        return unary(lambda x: F.softmax(x, -1), kernel, uniform(*shape, dtype=dtype))
    if op == 'cross_entropy':
        x, targets = uniform(*shape, dtype=dtype), torch.randint(shape[1], (shape[0],), device='cuda')
        if kernel.endswith('forward') and size == 'x'.join(map(str, shape)):
            return lambda: F.cross_entropy(x, targets, reduction='sum')
        if 'gradient' in size:
            x.requires_grad_()
            return lambda: torch.autograd.grad(F.cross_entropy(x, targets, reduction='sum'), x)
    if kernel == 'embedding_forward':
        tokens, weight = torch.randint(50304, (shape[0],), device='cuda'), uniform(50304, shape[1], dtype=dtype)
        return lambda: F.embedding(tokens, weight)
    if kernel == 'adamw':
        return optimizer(shape[0], dtype, lambda p: torch.optim.AdamW(p, fused=True))
    if kernel == 'sgd_momentum':
        return optimizer(shape[0], dtype, lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, fused=True))
    if kernel == 'global_norm':
        g = uniform(shape[0])
        return lambda: torch.linalg.vector_norm(g)
    if op == 'attention':
        return attention(kernel, size, dtype)
    if op == 'linear' or op.startswith('linear_gelu'):
        return linear(kernel, size, dtype)
    return None


def seconds_of(call, seconds):
    def timed(calls):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / calls
    timed(3)
    calls = max(1, min(10000, int(5e-3 / timed(2))))
    samples = [timed(calls) for _ in range(max(5, min(50, int(seconds / 5e-3))))]
    return statistics.median(samples)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('result')
    parser.add_argument('--seconds', type=float, default=0.1)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print('skipped: torch sees no GPU')
        return 77
    with open(arguments.result, encoding='utf-8') as file:
        cases = json.load(file)['cases']
    print(f'PyTorch {torch.__version__} on {torch.cuda.get_device_name()}\n')
    print('| kernel | size | dtype | accrue us | rate | share of the ceiling | PyTorch us | accrue is faster by |')
    print('|---|---|---|---:|---:|---:|---:|---:|')
    for case in cases:
        if 'declined' in case:
            print(f'| {case["kernel"]} | {case["size"]} | {case["dtype"]} | {case["declined"]} | | | | |')
            continue
        if case['seconds'] <= 0:
            continue
        try:
            call = call_of(case)
            if call is None:
                continue
            theirs = seconds_of(call, arguments.seconds)
        except RuntimeError as e:
            print(f'| {case["kernel"]} | {case["size"]} | {case["dtype"]} | | | | {str(e).splitlines()[0][:60]} | |')
            continue
        finally:
            torch.cuda.empty_cache()
        ours, share = case['seconds'], case['rate'] / case['ceiling'] if case['ceiling'] else 0
        print(f'| {case["kernel"]} | {case["size"]} | {case["dtype"]} | {ours * 1e6:.1f} | {case["rate"]:.0f} '
              f'{case["unit"]} | {share:.0%} | {theirs * 1e6:.1f} | {theirs / ours:.2f} |', flush=True)
    return 0


if __name__ == '__main__':
    sys.exit(main())
