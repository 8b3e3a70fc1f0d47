#!/usr/bin/env python3
"""Checks what nvcc produced against kernel_rules.txt, and writes a table that a person can read.

  check_kernels.py [--table kernels.md] [--rules kernel_rules.txt] [--dynamic bytes.txt] [--complete]
                   <object files or folders...>

Folders are searched for *.cu.o. Exit code 0: all rules hold; 1: each broken one is named with its kernel, and
each op with kernels that the rules do not know; 2: bad arguments, or something that cannot be read. --complete: an op of the rules without a kernel is a fault too.
--dynamic: what tests/cuda/shared_bytes.cu prints; a kernel of which it does not say how much dynamic shared memory it
uses, and a line without a kernel, are faults.
"""
import argparse
import collections
import fnmatch
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cubin  # noqa: E402
import occupancy  # noqa: E402

ACCESSES = ('loads', 'stores', 'both', 'any', 'none')
WIDTHS = (8, 16, 32, 64, 128, 256)


class BadRules(Exception):
    pass


class Rules:
    def __init__(self, lines):
        self.ops, self.exceptions, self.stacks, self.used = {}, [], [], set()
        for number, line in enumerate(lines, 1):
            words = line.split('#')[0].split(None, 2)
            if not words:
                continue
            pattern, demand, why = (words + ['', ''])[:3]
            if demand not in ACCESSES + ('stack',):
                raise BadRules(f'line {number}: expected <pattern> {"|".join(ACCESSES)}|stack, got: {line.strip()}')
            if ('/' in pattern) != bool(why):
                raise BadRules(f'line {number}: an exception, and nothing else, names its reason: {line.strip()}')
            if demand == 'stack':
                self.stacks.append(pattern)
            elif '/' in pattern:
                self.exceptions.append((pattern, demand))
            else:
                self.ops[pattern] = demand

    def _matches(self, pattern, kernel):
        if any(fnmatch.fnmatchcase(f'{op_of(kernel)}/{name}', pattern)
               for name in (short_name(kernel), signature(kernel).replace(' ', ''))):
            self.used.add(pattern)
            return True
        return False

    def demand(self, kernel):
        for pattern, demand in self.exceptions:
            if self._matches(pattern, kernel):
                return demand
        return 'none' if is_scalar(kernel) else self.ops.get(op_of(kernel), 'none')

    def unknown(self, kernels):
        """Ops that have kernels and no line: nobody has said what their accesses must be."""
        return sorted({op_of(k) for k in kernels} - self.ops.keys())

    def may_have_stack(self, kernel):
        return any([self._matches(pattern, kernel) for pattern in self.stacks])

    def unused(self):
        return [p for p in self.stacks + [p for p, _ in self.exceptions] if p not in self.used]


class DynamicShared:
    """The bytes of dynamic shared memory that launches ask for: lines 'op kernel bytes'."""
    def __init__(self, lines):
        self.bytes, self.used = {}, set()
        for number, line in enumerate(lines, 1):
            words = line.split()
            if len(words) != 3 or not words[2].isdigit():
                raise BadRules(f'dynamic shared memory, line {number}: expected op, kernel, bytes, got: {line.strip()}')
            self.bytes[words[0], words[1]] = int(words[2])

    def of(self, kernel):
        """Bytes; None where the kernel uses some and nobody said how much."""
        key = op_of(kernel), signature(kernel).replace(' ', '')
        if key in self.bytes:
            self.used.add(key)
            return self.bytes[key]
        return None if not kernel.shared and kernel.count('shared', 'store') else 0

    def unused(self):
        return [' '.join(key) for key in self.bytes if key not in self.used]


def op_of(kernel):
    return re.sub(r'(_cuda)?\.cu$', '', kernel.source)


def signature(kernel):
    """Name and template arguments without return type, namespaces and parameters."""
    name = re.sub(r'\(anonymous namespace\)::|accrue::|kernels::|cuda::', '', kernel.name).replace('> >', '>>')
    name = name.replace('> >', '>>')
    depth, end = 0, len(name)
    for at, letter in enumerate(name):  # the parameters begin at the first parenthesis outside <>
        depth += (letter == '<') - (letter == '>')
        if letter == '(' and depth == 0:
            end = at
            break
    depth, begin = 0, 0
    for at, letter in enumerate(name[:end]):
        depth += (letter == '<') - (letter == '>')
        if depth == 0 and (letter == ' ' or name[at:at + 2] == '::'):
            begin = at + (1 if letter == ' ' else 2)
    return name[begin:end]


def short_name(kernel):
    return signature(kernel).split('<')[0]


def is_scalar(kernel):
    return re.search('scalar|ragged', signature(kernel), re.IGNORECASE) is not None


def faults_of(kernel, rules):
    """The rules that a kernel breaks, as words."""
    found = []
    if not rules.may_have_stack(kernel):
        stored, loaded = kernel.local_bytes('store'), kernel.local_bytes('load')
        if kernel.stack:
            found.append(f'stack frame of {kernel.stack} bytes')
        if stored or loaded:
            found.append(f'local memory or spills: {stored} bytes stored, {loaded} loaded')
    if not kernel.threads:
        found.append('no launch bound (__launch_bounds__)')
    if int(re.sub(r'\D', '', kernel.arch)) >= 90 and not kernel.waits:
        found.append('touches memory or exits before wait_for_earlier_kernels()')
    demand = rules.demand(kernel)
    wide = {d: sum(kernel.count('global', d, b) for b in (128, 256)) for d in ('load', 'store')}
    if demand in ('loads', 'both') and not wide['load']:
        found.append('no 128-bit load from global memory')
    if demand in ('stores', 'both') and not wide['store']:
        found.append('no 128-bit store to global memory')
    if demand == 'any' and not wide['load'] + wide['store']:
        found.append('no 128-bit access to global memory')
    return found


def widths(kernel, direction):
    """'4x128 1x32', of global memory; generic accesses are marked."""
    parts = [f'{n}x{b}{mark}' for space, mark in (('global', ''), ('generic', ' generic'))
             for b in reversed(WIDTHS) if (n := kernel.count(space, direction, b))]
    return ' '.join(parts) or '-'


def table(kernels, faults, dynamic):
    """One row per kernel and architecture, in Markdown."""
    lines = ['# Kernels as nvcc made them', '',
             'Registers of a thread; bytes of shared memory, stack and spills (stored/loaded); threads of a block as',
             'its launch bound; occupancy computed for such a block (* marks kernels with dynamic shared memory that',
             'nobody told, which is not counted); loads and stores of global memory as instructions times bits.',
             'Kernels marked ! break a rule of tests/cuda/kernel_rules.txt.', '',
             '| op | kernel | sm | registers | shared | stack | spills | threads | occupancy | loads | stores |',
             '|---|---|---|---:|---:|---:|---|---:|---:|---|---|']
    for k in kernels:
        at_launch = dynamic.of(k)
        shared = k.shared + (at_launch or 0)
        share = occupancy.occupancy(k.arch, k.threads, k.registers, shared)
        spills = f'{k.local_bytes("store")}/{k.local_bytes("load")}' if k.count('local', 'store') else '0'
        lines.append(f'| {op_of(k)} | {"! " if faults.get((k.source, k.symbol, k.arch)) else ""}`{signature(k)}` | {k.arch} | '
                     f'{k.registers} | {shared}{"*" if at_launch is None else ""} | {k.stack} | {spills} | {k.threads or "-"} | '
                     f'{"-" if share is None else f"{share:.0%}"} | {widths(k, "load")} | {widths(k, "store")} |')
    return '\n'.join(lines) + '\n'


def inputs(paths):
    for path in paths:
        if os.path.isdir(path):
            for folder, _, files in os.walk(path):
                yield from sorted(os.path.join(folder, f) for f in files if f.endswith('.cu.o'))
        else:
            yield path


def main():
    parser = argparse.ArgumentParser(description='Checks the kernels that nvcc made.')
    parser.add_argument('paths', nargs='+', help='object files, libraries, cubins, or folders with *.cu.o')
    parser.add_argument('--table', help='also write the table into this file')
    parser.add_argument('--rules', default=os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                                        'kernel_rules.txt'))
    parser.add_argument('--dynamic', help='bytes of dynamic shared memory, as shared_bytes.cu prints them')
    parser.add_argument('--complete', action='store_true', help='every op of the rules must be there')
    arguments = parser.parse_args()
    try:
        with open(arguments.rules, encoding='utf-8') as file:
            rules = Rules(file)
        dynamic = DynamicShared([])
        if arguments.dynamic:
            with open(arguments.dynamic, encoding='utf-8') as file:
                dynamic = DynamicShared(file)
        found = {}
        for path in inputs(arguments.paths):
            for kernel in cubin.read_file(path):
                found.setdefault((kernel.source, kernel.symbol, kernel.arch), kernel)
    except (OSError, BadRules, cubin.Unreadable) as e:
        print(f'check_kernels: {e}', file=sys.stderr)
        return 2
    if not found:
        print('check_kernels: no CUDA kernel in ' + ', '.join(arguments.paths), file=sys.stderr)
        return 2
    kernels = list(found.values())
    cubin.demangle(kernels)
    kernels.sort(key=lambda k: (op_of(k), signature(k), int(re.sub(r'\D', '', k.arch))))
    faults = {(k.source, k.symbol, k.arch): faults_of(k, rules) for k in kernels}
    for k in kernels if arguments.dynamic else []:
        if dynamic.of(k) is None:
            faults[k.source, k.symbol, k.arch].append('dynamic shared memory that tests/cuda/shared_bytes.cu does not know')
    if arguments.table:
        with open(arguments.table, 'w', encoding='utf-8') as file:
            file.write(table(kernels, faults, dynamic))
    for k in kernels:
        for fault in faults[k.source, k.symbol, k.arch]:
            print(f'{op_of(k)}: {signature(k)} (sm_{k.arch}): {fault}')
    broken = sum(map(len, faults.values()))
    unknown, missing, unused, untrue = rules.unknown(kernels), [], [], []
    for op in unknown:
        print(f'{op}: has kernels, but no line in the rules')
    if arguments.complete:
        missing = sorted(op for op, demand in rules.ops.items() if demand != 'none' and
                         not any(op_of(k) == op and rules.demand(k) != 'none' for k in kernels))
        unused = rules.unused()
        untrue = dynamic.unused()
        for op in missing:
            print(f'{op}: in the rules, but no vectorised kernel of it was found')
        for pattern in unused:
            print(f'{pattern}: an exception of the rules that no kernel needs')
    for kernel in untrue:
        print(f'{kernel}: has dynamic shared memory, but no kernel of this name was found')
    archs = collections.Counter(k.arch for k in kernels)
    print(f'{len(kernels)} kernels ({", ".join(f"{n} for sm_{a}" for a, n in sorted(archs.items()))}), '
          f'{broken + len(unknown) + len(missing) + len(unused) + len(untrue)} faults')
    return 1 if broken or unknown or missing or unused or untrue else 0


if __name__ == '__main__':
    sys.exit(main())
