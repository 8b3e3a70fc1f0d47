#!/usr/bin/env python3
"""Tests of the reader and of the rules, on kernels compiled for the purpose: cubin_test.py <nvcc> <scratch folder>

Exit code 77, with the reason printed, where nvcc is not to be had.
"""
import functools
import os
import random
import re
import shutil
import subprocess
import sys
import types
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import check_kernels  # noqa: E402
import cubin  # noqa: E402
import occupancy  # noqa: E402

NVCC = SCRATCH = None
ARCHS = []


@functools.cache
def compile_probe(name, *flags):
    """An object file with the probe's code for every architecture; its name ends in the probe's."""
    folder = os.path.join(SCRATCH, re.sub(r'\W', '_', 'flags' + ''.join(flags)))
    os.makedirs(folder, exist_ok=True)
    out = os.path.join(folder, name + '.o')
    codes = [f'-gencode=arch=compute_{a},code=sm_{a}' for a in ARCHS]
    subprocess.run([NVCC, '-std=c++20', '-O3', '-w', *codes, *flags, '-c', os.path.join(HERE, 'probes', name),
                    '-o', out], check=True)
    return out


def check(*arguments):
    """Exit code and lines of check_kernels.py."""
    run = subprocess.run([sys.executable, os.path.join(HERE, 'check_kernels.py'), *arguments],
                         capture_output=True, text=True, check=False)
    return run.returncode, (run.stdout + run.stderr).splitlines()


class Reader(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.object = compile_probe('accesses.cu')
        cls.kernels = cubin.read_file(cls.object)
        cubin.demangle(cls.kernels)

    def kernel(self, arch, name):
        found = [k for k in self.kernels if k.arch == arch and k.name.startswith(name + '(')]
        self.assertEqual(len(found), 1, f'{name} of sm_{arch}')
        return found[0]

    def test_every_architecture_is_there(self):
        self.assertEqual({k.arch for k in self.kernels}, set(ARCHS))

    def test_widths_of_global_accesses(self):
        for arch in ARCHS:
            with self.subTest(arch=arch):
                got = self.kernel(arch, 'widths').accesses
                want = {('load', 8): 2, ('load', 16): 2, ('load', 32): 1, ('load', 64): 1, ('load', 128): 3,
                        ('store', 8): 1, ('store', 16): 3, ('store', 32): 1, ('store', 64): 1, ('store', 128): 3}
                self.assertEqual({(d, b): n for (s, d, b), n in got.items() if s == 'global'}, want)
                self.assertEqual({s for s, _, _ in got} - {'global', 'shared'}, set())

    def test_generic_accesses_are_not_global_ones(self):
        for arch in ARCHS:
            with self.subTest(arch=arch):
                k = self.kernel(arch, 'generic')
                self.assertEqual(k.count('generic', 'load', 128), 1)
                self.assertEqual(k.count('generic', 'store', 32), 1)
                self.assertEqual(k.count('global', 'load') + k.count('global', 'store'), 0)

    def test_asynchronous_copies_and_static_shared_memory(self):
        for arch in ARCHS:
            with self.subTest(arch=arch):
                k = self.kernel(arch, 'shared')
                self.assertEqual([k.count('global', 'load', b) for b in (32, 64, 128)], [1, 1, 3])
                self.assertEqual(k.shared, 528)
                self.assertEqual(k.threads, 96)

    def test_accesses_of_256_bits(self):
        archs = [a for a in ARCHS if int(a.rstrip('a')) >= 100]
        if not archs:
            self.skipTest('this nvcc does not know sm_100')
        for arch in archs:
            k = self.kernel(arch, 'widest')
            self.assertEqual([k.count('global', d, 256) for d in ('load', 'store')], [1, 1])

    def test_resources_are_those_that_the_assembler_reports(self):
        for arch in ARCHS:
            log = subprocess.run([NVCC, '-std=c++20', '-O3', f'-arch=sm_{arch}', '-Xptxas=-v', '-cubin', '-o',
                                  os.path.join(SCRATCH, 'probe.cubin'), os.path.join(HERE, 'probes/faults_cuda.cu')],
                                 capture_output=True, text=True, check=True).stderr
            want = {m[1]: tuple(map(int, m.groups()[1:])) for m in re.finditer(
                r"Compiling entry function '(\w+)' for '\w+'\n.*Function properties for \1\n\s*(\d+) bytes stack frame, "
                r'(\d+) bytes spill stores, (\d+) bytes spill loads\n.*Used (\d+) registers', log)}
            got = cubin.read_file(os.path.join(SCRATCH, 'probe.cubin'))
            self.assertEqual(len(got), 7)
            self.assertEqual({k.symbol for k in got}, set(want), log)
            for k in got:
                with self.subTest(arch=arch, kernel=k.symbol):
                    stack, stored, loaded, registers = want[k.symbol]
                    self.assertEqual(k.registers, registers)
                    self.assertGreaterEqual(k.stack, stack)  # that of the functions it calls is included
                    if 'spills' in k.symbol:
                        self.assertEqual((k.stack, k.local_bytes('store'), k.local_bytes('load')),
                                         (stack, stored, loaded))

    def test_libraries_name_the_sources_of_their_kernels(self):
        member = os.path.join(SCRATCH, 'a_name_that_is_longer_than_sixteen_letters.cu.o')
        shutil.copy(self.object, member)
        library = os.path.join(SCRATCH, 'probe.a')
        if os.path.exists(library):
            os.remove(library)
        subprocess.run(['ar', 'rcs', library, member], check=True)
        got = cubin.read_file(library)
        self.assertEqual(len(got), len(self.kernels))
        self.assertEqual({k.source for k in got}, {'a_name_that_is_longer_than_sixteen_letters.cu'})

    def test_compressed_and_damaged_code_is_refused(self):
        compressed = compile_probe('accesses.cu', '--compress-mode=size')
        with self.assertRaisesRegex(cubin.Unreadable, 'compressed'):
            cubin.read_file(compressed)
        with open(self.object, 'rb') as file:
            data = bytearray(file.read())
        at = data.find(b'\x7fELF\x02\x01', data.find(cubin.FATBIN))
        data[at + 40:at + 48] = b'\xff' * 8  # where the sections are
        broken = os.path.join(SCRATCH, 'broken.o')
        with open(broken, 'wb') as file:
            file.write(data)
        with self.assertRaises(cubin.Unreadable):
            cubin.read_file(broken)
        self.assertEqual(check(broken)[0], 2)

    def test_a_disassembler_sees_the_same(self):
        """Where nvdisasm is installed: all accesses of all probes, from its text."""
        if not shutil.which('nvdisasm'):
            self.skipTest('no nvdisasm')
        names = {'LDG': ('global', 'load'), 'STG': ('global', 'store'), 'LD': ('generic', 'load'),
                 'ST': ('generic', 'store'), 'LDL': ('local', 'load'), 'STL': ('local', 'store'),
                 'LDGSTS': ('global', 'load')}
        for probe in ('accesses.cu', 'faults_cuda.cu', 'gelu_cuda.cu'):
            for arch in ARCHS:
                file = os.path.join(SCRATCH, 'probe.cubin')
                subprocess.run([NVCC, '-std=c++20', '-O3', '-w', f'-arch=sm_{arch}', '-cubin', '-o', file,
                                os.path.join(HERE, 'probes', probe)], check=True)
                text = subprocess.run(['nvdisasm', '-c', file], capture_output=True, text=True, check=True).stdout
                for part in re.split(r'\n//-+ \.text\.', text)[1:]:
                    want = {}
                    for operation, modifiers in re.findall(r'\*/\s+(?:@!?U?P\w+ )?([A-Z]+)(\.\S*)? .*;', part):
                        if operation in names:
                            bits = re.search(r'\.[US]?(8|16|64|128|256)(?=\.|$)', modifiers or '')
                            key = (*names[operation], int(bits[1]) if bits else 32)
                            want[key] = want.get(key, 0) + 1
                    symbol = part.split()[0]
                    kernel, = [k for k in cubin.read_file(file) if k.symbol == symbol]
                    with self.subTest(arch=arch, kernel=symbol):
                        self.assertEqual({k: n for k, n in kernel.accesses.items() if k[0] != 'shared'}, want)


class Occupancy(unittest.TestCase):
    def test_it_is_that_of_cuda_occupancy_h(self):
        program = os.path.join(SCRATCH, 'occupancy')
        headers = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(NVCC))), 'include')
        subprocess.run([os.environ.get('CXX', 'g++'), '-std=c++20', '-I', headers,
                        os.path.join(HERE, 'occupancy_test.cpp'), '-o', program], check=True)
        random.seed(1)
        lines, want = [], []
        for arch in ('80', '86', '89', '90', '100', '120'):
            of = occupancy.limits(arch)
            for _ in range(3000):
                case = (random.randint(1, 1024), random.randint(1, 255), random.choice((0, random.randrange(49153))))
                lines.append(' '.join(map(str, (arch[:-1], arch[-1], of.threads, of.shared) + case)))
                want.append(occupancy.blocks_per_multiprocessor(arch, *case))
        out = subprocess.run([program], input='\n'.join(lines), capture_output=True, text=True, check=True).stdout
        self.assertEqual(list(map(int, out.split())), want)


class Check(unittest.TestCase):
    def test_faults_are_named(self):
        code, lines = check(compile_probe('faults_cuda.cu'))
        self.assertEqual(code, 1)
        for arch in ARCHS:
            text = '\n'.join(line for line in lines if f'(sm_{arch})' in line)
            with self.subTest(arch=arch):
                self.assertRegex(text, r'faults: spills \(sm_\w+\): stack frame of \d+ bytes')
                self.assertRegex(text, r'faults: spills \(sm_\w+\): local memory or spills: \d+ bytes stored')
                self.assertRegex(text, r'faults: indexes \(sm_\w+\): stack frame of \d+ bytes')
                self.assertRegex(text, r'faults: calls \(sm_\w+\): stack frame of \d+ bytes')
                self.assertRegex(text, r'faults: unbounded \(sm_\w+\): no launch bound')
                self.assertNotRegex(text, r'faults: unbounded \(sm_\w+\): (stack|local)')
                early = {'indexes', 'calls', 'unbounded', 'reads_early', 'exits_early'} if arch != '80' else set()
                self.assertEqual(set(re.findall(r'faults: (\w+) \(sm_\w+\): touches memory or exits before', text)),
                                 early)

    def test_narrow_kernels_of_a_memory_bound_op_are_refused_and_good_ones_pass(self):
        code, lines = check(compile_probe('gelu_cuda.cu'))
        self.assertEqual(code, 1)
        got = {re.sub(r' \(sm_\w+\)', '', line) for line in lines[:-1]}
        load, store = 'no 128-bit load from global memory', 'no 128-bit store to global memory'
        self.assertEqual(got, {f'gelu: narrow: {load}', f'gelu: narrow: {store}', f'gelu: narrow_loads: {load}',
                               f'gelu: narrow_stores: {store}', f'gelu: tagged<VectorPath>: {load}',
                               f'gelu: tagged<VectorPath>: {store}'})
        self.assertEqual(len(lines) - 1, len(got) * len(ARCHS))

    def rules(self, text):
        path = os.path.join(SCRATCH, 'rules.txt')
        with open(path, 'w', encoding='utf-8') as file:
            file.write(text)
        return ['--rules', path]

    def test_exceptions_allow_what_they_name_only(self):
        probe = compile_probe('gelu_cuda.cu')
        rules = 'gelu both\ngelu/narrow* none too small to matter\n'
        code, lines = check(probe, *self.rules(rules + 'gelu/tagged any its twin'))
        self.assertEqual(code, 1)
        self.assertEqual({re.sub(r' \(sm_\w+\)', '', line) for line in lines[:-1]},
                         {'gelu: tagged<ScalarPath>: no 128-bit access to global memory',
                          'gelu: tagged<VectorPath>: no 128-bit access to global memory'})
        self.assertEqual(check(probe, *self.rules(rules + 'gelu/tagged none its twin'))[0], 0)
        self.assertEqual(check(probe, *self.rules(rules + 'gelu/tagged<VectorPath> none its twin'))[0], 0)
        self.assertEqual(check(probe, *self.rules(rules + 'gelu/tagged<Other> none its twin'))[0], 1)
        code, lines = check(compile_probe('faults_cuda.cu'), *self.rules('faults/spills stack a probe\n'))
        self.assertEqual([line for line in lines if 'spills (' in line], [])
        self.assertTrue([line for line in lines if 'indexes (' in line])

    def test_complete_means_every_op_and_no_stale_exception(self):
        probe = compile_probe('gelu_cuda.cu')
        rules = 'gelu none\n'
        self.assertEqual(check(probe, '--complete', *self.rules(rules))[0], 0)
        code, lines = check(probe, '--complete', *self.rules(rules + 'relu both\n'))
        self.assertEqual((code, lines[0]), (1, 'relu: in the rules, but no vectorised kernel of it was found'))
        code, lines = check(probe, '--complete', *self.rules('gelu both\ngelu/* none all of them\n'))
        self.assertEqual((code, lines[0]), (1, 'gelu: in the rules, but no vectorised kernel of it was found'))
        code, lines = check(probe, '--complete', *self.rules(rules + 'gelu/gone none why\n'))
        self.assertEqual((code, lines[0]), (1, 'gelu/gone: an exception of the rules that no kernel needs'))

    def test_an_op_without_a_line_is_a_fault(self):
        probe = compile_probe('gelu_cuda.cu')
        self.assertEqual(check(probe, *self.rules('gelu none\n'))[0], 0)
        for rules in ('relu none\n', 'gelu/narrow none why\n'):
            code, lines = check(probe, *self.rules(rules))
            self.assertEqual((code, lines[0]), (1, 'gelu: has kernels, but no line in the rules'))
            self.assertTrue(lines[-1].endswith(' 1 faults'), lines[-1])

    def test_bad_rules_and_empty_inputs_are_errors(self):
        probe = compile_probe('gelu_cuda.cu')
        for text in ('gelu wide\n', 'gelu\n', 'gelu/narrow none\n', 'gelu both for some reason\n'):
            self.assertEqual(check(probe, *self.rules(text))[0], 2, text)
        self.assertEqual(check(os.path.join(HERE, 'cubin.py'))[0], 2)
        self.assertEqual(check(os.path.join(SCRATCH, 'missing.o'))[0], 2)

    def test_the_table_holds_every_kernel(self):
        path = os.path.join(SCRATCH, 'kernels.md')
        probe = compile_probe('gelu_cuda.cu')
        check(probe, '--table', path)
        with open(path, encoding='utf-8') as file:
            rows = [line for line in file if line.startswith('| gelu |')]
        self.assertEqual(len(rows), 8 * len(ARCHS))
        wide = [row for row in rows if '| `wide` | 90a |' in row]
        self.assertEqual(len(wide), 1)
        self.assertRegex(wide[0], r'\| 90a \| \d+ \| 0 \| 0 \| 0 \| 256 \| 100% \| 1x128 \| 1x128 \|')
        self.assertTrue(any('! `narrow`' in row for row in rows))

    def test_dynamic_shared_memory_counts_and_is_known(self):
        probe, path, rules = compile_probe('gelu_cuda.cu'), os.path.join(SCRATCH, 'dynamic.md'), self.rules('gelu none\n')
        told = os.path.join(SCRATCH, 'dynamic.txt')

        def check_told(text):
            with open(told, 'w', encoding='utf-8') as file:
                file.write(text)
            return check(probe, '--complete', '--dynamic', told, '--table', path, *rules)
        self.assertEqual(check_told('gelu wide 65536\ngelu tagged<ScalarPath> 1024\n')[0], 0)
        with open(path, encoding='utf-8') as file:
            shares = dict(re.findall(r'\| `wide` \| (\w+) \| \d+ \| 65536 \| .* \| 256 \| (\d+%) \|', file.read()))
        want = {'80': '25%', '90a': '38%', '100': '38%', '120': '17%'}
        self.assertEqual(shares, {arch: want[arch] for arch in ARCHS})
        code, lines = check_told('gelu wide 65536\ngelu gone 64\n')
        self.assertEqual((code, lines[0]), (1, 'gelu gone: has dynamic shared memory, but no kernel of this name was found'))
        for text in ('gelu wide\n', 'gelu wide much\n'):
            self.assertEqual(check_told(text)[0], 2, text)
        silent = types.SimpleNamespace(source='gelu_cuda.cu', name='staged<int, 3>(float*)', shared=0, count=lambda *_: 1)
        self.assertEqual(check_kernels.DynamicShared([]).of(silent), None)
        self.assertEqual(check_kernels.DynamicShared(['gelu staged<int,3> 96']).of(silent), 96)


if __name__ == '__main__':
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    NVCC, SCRATCH = sys.argv[1:3]
    if not shutil.which(NVCC):
        print('skipped: no nvcc on this machine, so there is nothing to read')
        sys.exit(77)
    known = subprocess.run([NVCC, '--list-gpu-code'], capture_output=True, text=True, check=True).stdout.split()
    ARCHS = [a for a in ('80', '90a', '100', '120') if f'sm_{a.rstrip("a")}' in known]
    os.makedirs(SCRATCH, exist_ok=True)
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
