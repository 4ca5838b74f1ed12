//! Names for instruction pointers: our own binary and libraries by their ELF symbols, the kernel by
//! /proc/kallsyms.

use std::collections::BTreeMap;
use std::fs;

use object::{Object, ObjectSegment, ObjectSymbol};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Symbol {
    pub in_kernel: bool,
    /// Function name without hash and type parameters, or `[object]`.
    pub name: String,
}

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
        let mut symbols = Symbols { kernel: KernelSymbols::of_kernel(), ..Symbols::default() };
        for mapping in maps.lines().filter_map(parse_map_line) {
            if mapping.executable {
                let name = mapping.path.rsplit('/').next().unwrap_or(&mapping.path).to_owned();
                symbols.objects.push((
                    mapping.start,
                    mapping.end,
                    format!("[{}]", name.trim_matches(['[', ']'])),
                ));
                symbols.user.extend(object_symbols(&mapping).unwrap_or_default());
            }
        }
        symbols.user.sort();
        symbols.objects.sort();
        symbols
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
        KernelSymbols(parse_kallsyms(kallsyms))
    }

    /// `function+0x1f`, or the address alone.
    pub fn name(&self, address: u64) -> String {
        match find(&self.0, address) {
            Some((start, name)) => format!("{name}+{:#x}", address - start),
            None => format!("{address:#x}"),
        }
    }
}

struct MapLine {
    start: u64,
    end: u64,
    file_offset: u64,
    executable: bool,
    path: String,
}

fn parse_map_line(line: &str) -> Option<MapLine> {
    let mut fields = line.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?;
    let file_offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    let path = fields.nth(2)?.to_owned();
    Some(MapLine {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        file_offset,
        executable: permissions.contains('x'),
        path,
    })
}

fn object_symbols(mapping: &MapLine) -> Option<Table> {
    let bytes = fs::read(&mapping.path).ok()?;
    let file = object::File::parse(&*bytes).ok()?;
    // Load bias: address of the mapping less the linked address of its segment. A mapping starts at
    // the page of its segment's first byte. Neighbouring segments may share that page; the mapped
    // one starts there.
    let page = crate::host::page_bytes();
    let starts_there = |offset: u64| offset / page * page == mapping.file_offset;
    let segment = file.segments().filter(|segment| starts_there(segment.file_range().0)).last()?;
    let linked_at =
        segment.address().wrapping_sub(segment.file_range().0).wrapping_add(mapping.file_offset);
    let bias = mapping.start.wrapping_sub(linked_at);
    let named = file
        .symbols()
        .chain(file.dynamic_symbols())
        .filter(|symbol| symbol.is_definition() && symbol.size() > 0);
    Some(
        named
            .filter_map(|symbol| {
                let start = symbol.address().wrapping_add(bias);
                let name = format!("{:#}", rustc_demangle::demangle(symbol.name().ok()?));
                (mapping.start <= start && start < mapping.end)
                    .then(|| (start, start + symbol.size(), name))
            })
            .collect(),
    )
}

fn parse_kallsyms(text: &str) -> Table {
    let mut starts: Vec<(u64, &str)> = text
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            let address = u64::from_str_radix(fields.next()?, 16).ok()?;
            // kptr_restrict hides addresses as zeros, which would give wrong names.
            let is_code = matches!(fields.next()?, "t" | "T" | "w" | "W");
            (is_code && address != 0).then_some((address, fields.next()?))
        })
        .collect();
    starts.sort_unstable();
    let ends = starts.iter().skip(1).map(|(start, _)| *start).chain([u64::MAX]);
    starts.iter().zip(ends).map(|(&(start, name), end)| (start, end, name.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_function_is_found_by_name() {
        let symbols = Symbols::of_this_process();
        let name = symbols.name(parse_kallsyms as *const () as usize as u64).name;
        assert!(name.contains("parse_kallsyms"), "{name}");
    }

    #[test]
    fn kernel_addresses_are_named_by_the_function_before_them() {
        let table = parse_kallsyms(
            "ffffffff81000000 T first\nffffffff81000100 t second\nffffffff81000080 D data\n0000000000000000 T hidden\n",
        );
        let symbols = Symbols { kernel: KernelSymbols(table), ..Symbols::default() };
        assert_eq!(symbols.name(0xFFFF_FFFF_8100_00FF).name, "first");
        assert_eq!(symbols.name(0xFFFF_FFFF_8100_0150).name, "second");
        assert_eq!(symbols.name(0xFFFF_FFFF_0000_0000).name, "[kernel]");
        assert_eq!(symbols.name(16).name, "[unknown]");
    }

    #[test]
    fn lines_that_are_no_mappings_are_passed_over() {
        assert!(parse_map_line("nonsense").is_none());
        assert!(
            parse_map_line("00400000-00452000 r-xp 00000000 08:02 173521 /usr/bin/x")
                .unwrap()
                .executable
        );
    }
}
