"""Reads what nvcc produced: the resources of every kernel and the width of its memory accesses.

Understands cubins, and any file they are embedded in (object files, static libraries, programs). Nothing is
disassembled: of an instruction only the number of its operation and its width are looked at.

Facts it rests on, for sm_80 to sm_120 (tests/cuda/cubin_test.py compiles kernels that show them):
  - an instruction is 16 bytes; the operation is the low 9 bits, bits 9 to 11 the form of its operands;
  - loads and stores have their width in bits 73 to 75: 8u, 8s, 16u, 16s, 32, 64, 128 bits; asynchronous copies
    to shared memory in bits 73 to 74 (before sm_100) or 74 to 75: 32, 64, 128; 256-bit ones are operations of
    their own;
  - griddepcontrol.wait is an operation of its own;
  - .nv.info holds (format, attribute, size, payload) records: registers and stack frame of each function;
    .nv.info.<kernel> the launch bounds; from sm_90 on, .nv.shared.<kernel> begins with 1 KiB of the system's.
"""
import collections
import dataclasses
import re
import struct
import subprocess

FATBIN = struct.pack('<I', 0xBA55ED50)
ELF = b'\x7fELF'
EM_CUDA = 190
MAX_THREADS, REQUIRED_THREADS, FRAME_SIZE, REGISTERS = 0x05, 0x10, 0x11, 0x2f
SIZED, RESERVED_SHARED = 4, 1024
WIDTH = (8, 8, 16, 16, 32, 64, 128, 0)
# operation: (space, direction, width or None for the field)
OPERATIONS = {
    0x180: ('generic', 'load', None), 0x185: ('generic', 'store', None),
    0x181: ('global', 'load', None), 0x186: ('global', 'store', None),
    0x183: ('local', 'load', None), 0x187: ('local', 'store', None),
    0x184: ('shared', 'load', None), 0x188: ('shared', 'store', None),
    0x17e: ('global', 'load', 256), 0x17f: ('global', 'store', 256),
}
ASYNC_COPY = 0x1ae
EXIT, WAIT_FOR_EARLIER_KERNELS = 0x14d, 0x02e  # griddepcontrol.wait, from sm_90 on


class Unreadable(Exception):
    pass


@dataclasses.dataclass
class Kernel:
    symbol: str
    arch: str                # '90a'
    source: str              # 'gelu_cuda.cu', where its anonymous namespace or its member's name tells
    registers: int = 0
    shared: int = 0          # bytes, static
    stack: int = 0           # bytes: spills, arrays that are indexed, calls
    threads: int = 0         # the launch bound; 0: none
    waits: bool = False      # for the kernels before it, ahead of every access to global memory and every exit
    accesses: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    name: str = ''           # demangled

    def count(self, space, direction, bits=None):
        return sum(n for (s, d, b), n in self.accesses.items()
                   if (s, d) == (space, direction) and bits in (None, b))

    def local_bytes(self, direction):
        return sum(n * b // 8 for (s, d, b), n in self.accesses.items() if (s, d) == ('local', direction))


def _sections(elf):
    names_at, = struct.unpack_from('<H', elf, 62)
    offset, = struct.unpack_from('<Q', elf, 40)
    size, count = struct.unpack_from('<HH', elf, 58)
    headers = [struct.unpack_from('<IIQQQQII', elf, offset + i * size) for i in range(count)]
    names = headers[names_at][4]
    for name, kind, _, _, at, length, link, info in headers:
        end = elf.index(b'\0', names + name)
        yield elf[names + name:end].decode(), kind, elf[at:at + length] if kind != 8 else b'', length, link


def _records(info):
    at = 0
    while at + 4 <= len(info):
        kind, attribute, size = struct.unpack_from('<BBH', info, at)
        at += 4
        payload = info[at:at + size] if kind == SIZED else b''
        at += len(payload)
        yield attribute, payload


def _accesses(code, major):
    counts = collections.Counter()
    for low, high in struct.iter_unpack('<QQ', code):
        operation = low & 0x1ff
        if operation == ASYNC_COPY:
            width = (high >> 9 & 3) if major < 100 else (high >> 10 & 3)
            counts['global', 'load', 32 << width] += 1
            counts['shared', 'store', 32 << width] += 1
        elif operation in OPERATIONS:
            space, direction, width = OPERATIONS[operation]
            counts[space, direction, width or WIDTH[high >> 9 & 7]] += 1
    return counts


def _waits(code):
    for low, _ in struct.iter_unpack('<QQ', code):
        operation = low & 0x1ff
        if operation == WAIT_FOR_EARLIER_KERNELS:
            return True
        if operation in (EXIT, ASYNC_COPY) or OPERATIONS.get(operation, ('shared',))[0] in ('global', 'generic'):
            return False
    return False


def read_cubin(elf, source='', variant=''):
    """The kernels of one cubin. `variant`: the letter after the architecture, which a cubin does not know."""
    machine, = struct.unpack_from('<H', elf, 18)
    if elf[:4] != ELF or elf[4] != 2 or machine != EM_CUDA:
        raise Unreadable('not a 64-bit CUDA ELF file')
    flags, = struct.unpack_from('<I', elf, 48)
    if elf[8] < 8:
        raise Unreadable(f'its ABI version is {elf[8]}; 8 and newer are understood (CUDA 13)')
    major = flags >> 8 & 0xff
    if not 80 <= major < 130:
        raise Unreadable(f'sm_{major}: only sm_80 to sm_120 are understood')
    sections = {name: (data, length, link) for name, _, data, length, link in _sections(elf)}
    symtab, _, _ = sections['.symtab']
    strings = sections['.strtab'][0]
    symbols = [strings[name:strings.index(b'\0', name)].decode()
               for name, _, _, _, _, _ in struct.iter_unpack('<IBBHQQ', symtab)]
    registers, frames = {}, collections.Counter()
    for attribute, payload in _records(sections.get('.nv.info', (b'', 0, 0))[0]):
        if attribute in (REGISTERS, FRAME_SIZE):
            symbol, value = struct.unpack('<II', payload)
            (registers if attribute == REGISTERS else frames)[symbols[symbol]] = value
    kernels = []
    for section, (code, _, _) in sections.items():
        symbol = section.removeprefix('.text.')
        if symbol == section or '.nv.info.' + symbol not in sections:
            continue
        if len(code) % 16 or not code:
            raise Unreadable(f'{symbol}: {len(code)} bytes of code')
        threads = 0
        for attribute, payload in _records(sections['.nv.info.' + symbol][0]):
            if attribute in (MAX_THREADS, REQUIRED_THREADS):
                x, y, z = struct.unpack('<III', payload)
                threads = x * y * z
        shared = sections.get('.nv.shared.' + symbol, (b'', 0, 0))[1]
        if major >= 90:
            shared = max(0, shared - RESERVED_SHARED)
        # Functions that were not inlined carry the name of their kernel: $kernel$function.
        stack = max([frames[symbol]] + [n for name, n in frames.items() if name.startswith(f'${symbol}$')])
        file = re.search(r'_GLOBAL__N__[0-9a-f]{8}_\d+_(\w+?)_cu_[0-9a-f]{8}', symbol)
        kernels.append(Kernel(symbol, f'{major}{variant}', file[1] + '.cu' if file else source, registers[symbol],
                              shared, stack, threads, _waits(code), _accesses(code, major)))
    return kernels


def _members(data):
    """The members of a static library with their names; anything else is one member without a name."""
    if not data.startswith(b'!<arch>\n'):
        yield '', data
        return
    at, long_names = 8, b''
    while at + 60 <= len(data):
        name, size = data[at:at + 16].decode().rstrip(), int(data[at + 48:at + 58])
        body = data[at + 60:at + 60 + size]
        if name == '//':
            long_names = body
        elif name not in ('/', '/SYM64/'):
            if name.startswith('/'):
                start = int(name[1:])
                name = long_names[start:long_names.index(b'/\n', start)].decode()
            yield name.rstrip('/'), body
        at += 60 + size + size % 2


def _embedded(data):
    """The cubins embedded in a file, each with the letter of its architecture."""
    at = data.find(FATBIN)
    while at >= 0:
        _, version, header, size = struct.unpack_from('<IHHQ', data, at)
        entry, end = at + header, at + header + size
        if version == 1 and header >= 16 and end <= len(data):
            while entry + 64 <= end:
                kind, _, header, size = struct.unpack_from('<HHIQ', data, entry)
                arch, flags = struct.unpack_from('<I', data, entry + 28)[0], struct.unpack_from('<Q', data, entry + 40)[0]
                body = data[entry + header:entry + header + size]
                if kind == 2:
                    if not body.startswith(ELF):
                        raise Unreadable(f'its code for sm_{arch} is compressed: give nvcc --no-compress')
                    yield body, 'a' if flags & 1 << 20 else ''
                entry += header + size
        at = data.find(FATBIN, at + 4)


def read_file(path):
    """The kernels of a cubin, or of everything that is embedded in a file."""
    with open(path, 'rb') as file:
        data = file.read()
    kernels = []
    for member, body in _members(data):
        source = re.sub(r'\.o$', '', member or path.rsplit('/', 1)[-1])
        try:
            if body[:4] == ELF and struct.unpack_from('<H', body, 18)[0] == EM_CUDA:
                kernels += read_cubin(body, source)
            else:
                for cubin, variant in _embedded(body):
                    kernels += read_cubin(cubin, source, variant)
        except (Unreadable, struct.error, ValueError, KeyError, IndexError, OverflowError) as e:
            raise Unreadable(f'{path}{"(" + member + ")" if member else ""}: {e}') from e
    return kernels


def demangle(kernels):
    """Fills in the names as c++filt of the binutils gives them; without it, the symbols stand in."""
    try:
        out = subprocess.run(['c++filt'], input='\n'.join(k.symbol for k in kernels), text=True,
                             capture_output=True, check=True).stdout.split('\n')
    except (OSError, subprocess.CalledProcessError):
        out = [k.symbol for k in kernels]
    for kernel, name in zip(kernels, out):
        kernel.name = name
