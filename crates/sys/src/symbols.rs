//! Names for instruction pointers: our own binary and libraries by their ELF symbols, the kernel by
//! /proc/kallsyms.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;

use object::{Object, ObjectSegment, ObjectSymbol};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Symbol {
    pub in_kernel: bool,
    /// Function name without hash and type parameters, or `[object]`.
    pub name: String,
}

/// Start, end and name, by start.
type Table = Vec<(u64, u64, String)>;

#[derive(Debug, Default)]
pub struct Symbols {
    kernel: KernelSymbols,
    user: Table,
    objects: Table,
}

/// Addresses from here on are the kernel's, on x86-64 and AArch64.
const KERNEL_FROM: u64 = 1 << 63;

impl Symbols {
    /// Reads /proc/self/maps, the symbol tables of the objects in it, and /proc/kallsyms. Files
    /// that cannot be read give no names.
    pub fn of_this_process() -> Symbols {
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let code: Vec<CodeMapping> = maps.lines().filter_map(CodeMapping::parse).collect();
        let mut user: Table = code.iter().filter_map(CodeMapping::symbols).flatten().collect();
        user.sort();
        // The kernel lists mappings by address.
        let objects = code.iter().map(|code| (code.start, code.end, code.object())).collect();
        Symbols { kernel: KernelSymbols::of_kernel(), user, objects }
    }

    pub fn name(&self, address: u64) -> Symbol {
        let in_kernel = address >= KERNEL_FROM;
        let name = if in_kernel {
            find(&self.kernel.0, address).map_or("[kernel]", |(_, name)| name)
        } else {
            let found = find(&self.user, address).or_else(|| find(&self.objects, address));
            found.map_or("[unknown]", |(_, name)| name)
        };
        Symbol { in_kernel, name: name.to_owned() }
    }

    pub fn histogram(&self, addresses: &[u64]) -> Vec<(Symbol, u64)> {
        let mut counts: BTreeMap<Symbol, u64> = BTreeMap::new();
        for &address in addresses {
            *counts.entry(self.name(address)).or_default() += 1;
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        counts
    }
}

fn find(table: &Table, address: u64) -> Option<(u64, &str)> {
    let after = table.partition_point(|(start, ..)| *start <= address);
    let (start, end, name) = table[..after].last()?;
    (address < *end).then_some((*start, name.as_str()))
}

#[derive(Debug, Default)]
pub struct KernelSymbols(Table);

impl KernelSymbols {
    pub fn of_kernel() -> KernelSymbols {
        KernelSymbols::parse(&fs::read_to_string("/proc/kallsyms").unwrap_or_default())
    }

    pub fn parse(kallsyms: &str) -> KernelSymbols {
        let start = |line| {
            let mut fields = str::split_whitespace(line);
            let address = u64::from_str_radix(fields.next()?, 16).ok()?;
            // kptr_restrict hides addresses as zeros, which would give wrong names.
            let is_code = matches!(fields.next()?, "t" | "T" | "w" | "W");
            (is_code && address != 0).then_some((address, fields.next()?))
        };
        let mut starts: Vec<(u64, &str)> = kallsyms.lines().filter_map(start).collect();
        starts.sort_unstable();
        let ends = starts.iter().skip(1).map(|(start, _)| *start).chain([u64::MAX]);
        let entry = |(&(start, name), end): (&(u64, &str), _)| (start, end, name.to_owned());
        KernelSymbols(starts.iter().zip(ends).map(entry).collect())
    }

    /// Addresses of a function.
    pub fn range(&self, function: &str) -> Option<Range<u64>> {
        let found = self.0.iter().find(|(_, _, name)| name == function);
        found.map(|(start, end, _)| *start..*end)
    }

    /// `function+0x1f`, or the address alone.
    pub fn name(&self, address: u64) -> String {
        match find(&self.0, address) {
            Some((start, name)) => format!("{name}+{:#x}", address - start),
            None => format!("{address:#x}"),
        }
    }
}

/// Executable mapping of a file.
struct CodeMapping<'a> {
    start: u64,
    end: u64,
    file_offset: u64,
    path: &'a str,
}

impl CodeMapping<'_> {
    /// Parses a line of /proc/self/maps; `None` for other mappings.
    fn parse(line: &str) -> Option<CodeMapping<'_>> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [range, permissions, offset, _, _, path, ..] = fields[..] else { return None };
        let (start, end) = range.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let (start, end, file_offset) = (hex(start)?, hex(end)?, hex(offset)?);
        permissions.contains('x').then_some(CodeMapping { start, end, file_offset, path })
    }

    fn object(&self) -> String {
        let name = self.path.rsplit('/').next().unwrap_or(self.path);
        format!("[{}]", name.trim_matches(['[', ']']))
    }

    fn symbols(&self) -> Option<Table> {
        let bytes = fs::read(self.path).ok()?;
        let file = object::File::parse(&*bytes).ok()?;
        // Load bias: address of the mapping less the linked address of its segment. A mapping
        // starts at the page of its segment's first byte. Neighbouring segments may share that
        // page; the mapped one starts there.
        let page = crate::host::page_bytes();
        let starts_there = |offset: u64| offset / page * page == self.file_offset;
        let (offset, address) = file
            .segments()
            .map(|segment| (segment.file_range().0, segment.address()))
            .filter(|(offset, _)| starts_there(*offset))
            .last()?;
        let bias = self.start.wrapping_sub(address).wrapping_add(offset - self.file_offset);
        let entry = |symbol: object::Symbol<'_, '_>| {
            let start = symbol.address().wrapping_add(bias);
            let is_code = symbol.is_definition() && symbol.size() > 0;
            let is_here = is_code && (self.start..self.end).contains(&start);
            let name = symbol.name().ok().filter(|_| is_here)?;
            let name = format!("{:#}", rustc_demangle::demangle(name));
            Some((start, start + symbol.size(), name))
        };
        Some(file.symbols().chain(file.dynamic_symbols()).filter_map(entry).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_function_is_found_by_name() {
        let symbols = Symbols::of_this_process();
        let name = symbols.name(find as *const () as usize as u64).name;
        assert!(name.contains("symbols::find"), "{name}");
    }

    #[test]
    fn kernel_addresses_are_named_by_the_function_before_them() {
        let kernel = KernelSymbols::parse(
            "ffffffff81000000 T first\nffffffff81000100 t second\nffffffff81000080 D data\n0000000000000000 T hidden\n",
        );
        let symbols = Symbols { kernel, ..Symbols::default() };
        assert_eq!(symbols.name(0xFFFF_FFFF_8100_00FF).name, "first");
        assert_eq!(symbols.name(0xFFFF_FFFF_8100_0150).name, "second");
        assert_eq!(symbols.name(0xFFFF_FFFF_0000_0000).name, "[kernel]");
        assert_eq!(symbols.name(16).name, "[unknown]");
    }

    #[test]
    fn lines_that_are_no_mappings_are_passed_over() {
        let data = "00400000-00452000 r--p 00000000 08:02 173521 /usr/bin/x";
        for (line, object) in [
            ("nonsense", None),
            (data, None),
            (&data.replace("r--p", "r-xp"), Some("[x]")),
            ("7ffe-8000 r-xp 00000000 00:00 0 [vdso]", Some("[vdso]")),
        ] {
            let found = CodeMapping::parse(line).map(|code| code.object());
            assert_eq!(found.as_deref(), object, "{line}");
        }
    }
}
