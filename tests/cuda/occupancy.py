"""How many blocks of a kernel fit on a multiprocessor: the formula of the CUDA programming guide and of
cuda_occupancy.h, with which tests/cuda/occupancy_test.cpp compares it."""
import dataclasses

WARP, REGISTERS, REGISTER_UNIT, PARTITIONS, SHARED_UNIT, SHARED_RESERVED = 32, 65536, 256, 4, 128, 1024


@dataclasses.dataclass(frozen=True)
class Limits:
    threads: int  # of a multiprocessor
    blocks: int
    shared: int   # bytes


def limits(arch):
    """Of '80', '90a', ...; None where they are not known."""
    return {'80': Limits(2048, 32, 164 << 10), '86': Limits(1536, 16, 100 << 10),
            '89': Limits(1536, 24, 100 << 10), '90': Limits(2048, 32, 228 << 10),
            '100': Limits(2048, 32, 228 << 10), '120': Limits(1536, 24, 100 << 10)}.get(arch.rstrip('af'))


def _up(value, unit):
    return (value + unit - 1) // unit * unit


def blocks_per_multiprocessor(arch, threads, registers, shared):
    """Blocks of `threads` threads with `registers` each and `shared` bytes of shared memory."""
    of = limits(arch)
    warps = _up(threads, WARP) // WARP
    by_threads = of.threads // WARP // warps
    by_registers = by_threads
    if registers:
        by_registers = REGISTERS // PARTITIONS // _up(registers * WARP, REGISTER_UNIT) * PARTITIONS // warps
    by_shared = of.shared // _up(shared + SHARED_RESERVED, SHARED_UNIT)
    return min(of.blocks, by_threads, by_registers, by_shared)


def occupancy(arch, threads, registers, shared):
    """The share of the warps a multiprocessor can hold; None for an architecture without known limits."""
    if limits(arch) is None or not threads:
        return None
    blocks = blocks_per_multiprocessor(arch, threads, registers, shared)
    return blocks * _up(threads, WARP) / limits(arch).threads
