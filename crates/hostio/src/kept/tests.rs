use std::collections::BTreeMap;
use std::time::Duration;

use daqmeter_sys::memory::{Buffer, Pages};
use proptest::prelude::*;

use super::*;

const BLOCK: usize = 8192;
const ENTRY: usize = KeptBlock::BYTES;

fn settings(folder: &Path, write: WriteBy) -> KeepSettings {
    KeepSettings {
        folder: folder.join("run"),
        write,
        rotation: None,
        compares: true,
        is_trial: false,
        block_bytes: BLOCK,
        pages: Pages::Base,
    }
}

fn streams(dtype: Option<&str>) -> Vec<KeptStream> {
    let stream = |file: &str| KeptStream {
        name: format!("emu:{file}"),
        content: KeptContent::Blocks,
        file: file.to_owned(),
        dtype: dtype.map(str::to_owned),
        shape: dtype.map_or_else(Vec::new, |_| vec![2, BLOCK / 4]),
    };
    ["a", "b"].map(stream).into()
}

/// Bytes of a block of a stream, which no other block has.
fn content(stream: u32, number: u64, bytes: usize) -> Vec<u8> {
    let words = (0..bytes.div_ceil(8) as u64)
        .flat_map(|at| (at ^ number << 20 ^ u64::from(stream) << 60).to_le_bytes());
    words.take(bytes).collect()
}

fn give(writer: &mut KeptWriter, buffer: &mut Buffer, stream: u32, number: u64, bytes: usize) {
    let content = content(stream, number, bytes);
    buffer.slice_mut::<u8>(bytes).copy_from_slice(&content);
    let block = KeptBlock {
        number,
        time_ns: number,
        sum: sum(&content),
        bytes: u32::try_from(bytes).unwrap(),
        events: 1,
        stream,
        ..KeptBlock::default()
    };
    writer.take(buffer, block).unwrap();
}

/// Keeps `blocks` blocks of each stream, and ends.
fn kept(folder: &Path, blocks: u64, settings: KeepSettings) -> PathBuf {
    let mut writer = KeptWriter::begin(settings, streams(Some("<u2"))).unwrap();
    let mut buffer = Buffer::new(BLOCK, Pages::Base).unwrap();
    for number in 0..blocks {
        (0..2).for_each(|stream| give(&mut writer, &mut buffer, stream, number, BLOCK));
    }
    writer.end().unwrap();
    assert_eq!(writer.compare(), Ok(2 * blocks));
    folder.join("run")
}

fn checked(run: &Path) -> KeptChecked {
    KeptCheck::open(run).unwrap().all(&|| false).unwrap()
}

fn files(run: &Path) -> Vec<String> {
    let names = fs::read_dir(run).unwrap().map(|file| file.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The oracle is a map of what was given; the files are read by their names and offsets.
    #[test]
    fn every_byte_is_where_the_index_says_and_in_no_other_place(
        given in proptest::collection::vec((0..2_u32, 1..=BLOCK), 1..60),
        is_direct: bool,
        rotates: bool,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let write = if is_direct { WriteBy::Direct } else { WriteBy::Cached };
        let rotation = rotates.then_some(Rotation::Bytes(20_000));
        let settings = KeepSettings { rotation, ..settings(folder.path(), write) };
        // Past the page cache, whole sectors are wanted.
        let bytes = |bytes: usize| if is_direct { bytes.next_multiple_of(4096) } else { bytes };
        let mut writer = KeptWriter::begin(settings, streams(None)).unwrap();
        let mut buffer = Buffer::new(BLOCK, Pages::Base).unwrap();
        let mut files = BTreeMap::<u32, Vec<u8>>::new();
        for (number, &(stream, len)) in (0..).zip(&given) {
            give(&mut writer, &mut buffer, stream, number, bytes(len));
            files.entry(stream).or_default().extend(content(stream, number, bytes(len)));
        }
        writer.end().unwrap();
        prop_assert!(writer.left().iter().all(|left| *left == (0, 0)));
        let run = folder.path().join("run");
        for (stream, wanted) in files {
            let name = ["a", "b"][stream as usize];
            let parts = (0..100).map_while(|file| fs::read(run.join(format!("{name}.{file:04}.dat"))).ok());
            prop_assert_eq!(parts.collect::<Vec<_>>().concat(), wanted);
        }
        let found = checked(&run);
        prop_assert_eq!(found.blocks, given.len() as u64);
        prop_assert_eq!(found.faults, Vec::<String>::new());
        let mut reader = KeptReader::open(&run).unwrap();
        for (number, &(stream, len)) in (0..).zip(&given) {
            let block = reader.next_block().unwrap().unwrap();
            prop_assert_eq!((block.number, block.stream), (number, stream));
            let mut found = vec![0; bytes(len)];
            reader.read(&block, &mut found).unwrap();
            prop_assert_eq!(found, content(stream, number, bytes(len)));
        }
        prop_assert!(reader.next_block().unwrap().is_none());
    }

    #[test]
    fn an_entry_is_read_as_it_was_written_and_no_other_bytes_are_one(
        words: [u64; 4], halves: [u32; 4], at in 0..KeptBlock::BYTES, bit in 0..8,
    ) {
        let [number, time_ns, offset, sum] = words;
        let [bytes, events, stream, file] = halves;
        let block = KeptBlock { number, time_ns, offset, sum, bytes, events, stream, file };
        let mut entry = block.to_bytes();
        prop_assert_eq!(KeptBlock::of_bytes(&entry), Some(block));
        entry[at] ^= 1_u8 << bit;
        prop_assert_eq!(KeptBlock::of_bytes(&entry), None);
    }

    /// A folder of another's making: any answer, but one.
    #[test]
    fn no_index_ends_the_check_early(index in proptest::collection::vec(any::<u8>(), 0..300)) {
        let folder = tempfile::tempdir().unwrap();
        let run = kept(folder.path(), 2, settings(folder.path(), WriteBy::Cached));
        fs::write(run.join(INDEX), index).unwrap();
        prop_assert!(!checked(&run).is_complete());
    }
}

/// Each case is a file, a place in it, a change there, and the text that the check must give.
#[test]
fn harm_is_named_with_its_place() {
    let edit = |run: &Path, name: &str, at: usize, change: fn(&mut Vec<u8>, usize)| {
        let path = run.join(name);
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes, at);
        fs::write(path, bytes).unwrap();
    };
    let flip: fn(&mut Vec<u8>, usize) = |bytes, at| bytes[at] ^= 1;
    let cut: fn(&mut Vec<u8>, usize) = |bytes, at| bytes.truncate(at);
    let drop_entry: fn(&mut Vec<u8>, usize) =
        |bytes, at| drop(bytes.drain(at * KeptBlock::BYTES..(at + 1) * KeptBlock::BYTES));
    let swap_entries: fn(&mut Vec<u8>, usize) = |bytes, at| {
        let entries = bytes.as_chunks_mut::<{ KeptBlock::BYTES }>().0;
        entries.swap(at, at + 2);
    };
    for (name, at, change, wanted, intact) in [
        (
            "a.0000.npy",
            NPY_BYTES + 3 * BLOCK + 7,
            flip,
            "a.0000.npy: block 3 at byte 28672 is not as it was written\n",
            [Some(2), Some(9)],
        ),
        (
            "b.0000.npy",
            NPY_BYTES + 6 * BLOCK + 1,
            cut,
            "b.0000.npy: block 6 at byte 53248 is not whole: the file ends before, and all up to 9\n",
            [Some(9), Some(5)],
        ),
        (
            "b.0000.npy",
            NPY_BYTES + 9 * BLOCK,
            cut,
            "b.0000.npy: block 9 at byte 77824 is not whole",
            [Some(9), Some(8)],
        ),
        ("b.0000.npy", 60, flip, "its header does not say 10 blocks", [Some(9); 2]),
        (INDEX, 5 * ENTRY + 9, flip, "index: entry 5 is no entry", [Some(2), Some(1)]),
        (
            INDEX,
            19 * ENTRY + 9,
            cut,
            "the index ends within an entry, of which 9",
            [Some(9), Some(8)],
        ),
        (INDEX, 19 * ENTRY, cut, "wrote 20 blocks, and the index has 19", [Some(9), Some(8)]),
        (INDEX, 4, drop_entry, "block 3 does not follow the one before it", [Some(1), Some(9)]),
        (INDEX, 4, swap_entries, "block 2 came after a later one", [Some(1), Some(9)]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let run = kept(folder.path(), 10, settings(folder.path(), WriteBy::Cached));
        assert!(checked(&run).is_complete());
        edit(&run, name, at, change);
        let found = checked(&run);
        assert!(!found.is_complete());
        let all = found.faults.join("\n") + "\n";
        assert!(all.contains(wanted), "{name} at {at}: {all}");
        let found = found.streams.iter().map(|stream| stream.intact);
        assert_eq!(found.collect::<Vec<_>>(), intact, "{name} at {at}");
    }
}

#[test]
fn numbers_that_are_missing_are_counted_and_listed() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer =
        KeptWriter::begin(settings(folder.path(), WriteBy::Cached), streams(None)).unwrap();
    let mut buffer = Buffer::new(BLOCK, Pages::Base).unwrap();
    for number in [0, 1, 5, 6, 8] {
        give(&mut writer, &mut buffer, 0, number, 100);
    }
    writer.end().unwrap();
    let found = checked(&folder.path().join("run"));
    assert_eq!((found.streams[0].missing, &found.streams[0].gaps[..]), (4, &[(2, 4), (7, 7)][..]));
    assert_eq!(found.streams[0].numbers, Some((0, 8)));
    assert!(found.faults.is_empty() && !found.is_complete());
    assert_eq!(found.streams[1].numbers, None);
}

/// A program that is killed leaves its files as they are at that moment.
#[test]
fn a_copy_of_the_files_at_any_moment_has_all_that_was_said_to_be_kept() {
    for write in [WriteBy::Cached, WriteBy::Direct] {
        let folder = tempfile::tempdir().unwrap();
        let rotation = Some(Rotation::Bytes(5 * BLOCK as u64));
        let settings = KeepSettings { rotation, ..settings(folder.path(), write) };
        let mut writer = KeptWriter::begin(settings, streams(Some("<u2"))).unwrap();
        let mut buffer = Buffer::new(BLOCK, Pages::Base).unwrap();
        let run = folder.path().join("run");
        for number in 0..40 {
            (0..2).for_each(|stream| give(&mut writer, &mut buffer, stream, number, BLOCK));
            let said = writer.kept().blocks;
            let copy = folder.path().join(format!("copy{number}"));
            fs::create_dir(&copy).unwrap();
            for name in files(&run).iter().filter(|name| !name.starts_with('.')) {
                fs::copy(run.join(name), copy.join(name)).unwrap();
            }
            let found = checked(&copy);
            assert!(found.blocks >= said, "{number}: {} of {said}", found.blocks);
            let only = "the recorder did not end: it was killed, or still runs";
            assert_eq!(found.faults, [only], "{number}");
            fs::remove_dir_all(&copy).unwrap();
        }
    }
}

#[test]
fn a_folder_that_holds_something_is_refused_and_a_trial_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    fs::create_dir(&run).unwrap();
    let own = || settings(folder.path(), WriteBy::Auto);
    let trial = KeepSettings { is_trial: true, ..own() };
    kept_nothing(&trial);
    assert!(!run.exists());
    // A run that never began leaves its name free, too.
    kept_nothing(&own());
    assert!(!run.exists());
    fs::create_dir(&run).unwrap();
    fs::write(run.join("mine"), "precious").unwrap();
    let refused = KeptWriter::begin(own(), streams(None)).err().unwrap();
    assert!(refused.0.ends_with("is there and holds something: name another folder"), "{refused}");
    assert_eq!(files(&run), ["mine"]);
}

fn kept_nothing(settings: &KeepSettings) {
    drop(KeptWriter::begin(settings.clone(), streams(None)).unwrap());
}

#[test]
fn a_file_ends_at_its_age() {
    let folder = tempfile::tempdir().unwrap();
    let rotation = Some(Rotation::Time(Duration::ZERO));
    let run =
        kept(folder.path(), 3, KeepSettings { rotation, ..settings(folder.path(), WriteBy::Auto) });
    let names = files(&run);
    let arrays = names.iter().filter(|name| name.ends_with("npy"));
    assert_eq!(arrays.count(), 6, "{names:?}");
    assert!(checked(&run).is_complete());
    // A file that was ended long ago is compared, too.
    let path = run.join("a.0000.npy");
    let mut bytes = fs::read(&path).unwrap();
    (bytes[60], bytes[12]) = (b'7', b'7');
    bytes.push(0);
    fs::write(path, bytes).unwrap();
    let faults = checked(&run).faults.join("\n");
    for wanted in
        ["has 12289 bytes, and its last block ends at 12288", "header does not say 1 block"]
    {
        assert!(faults.contains(wanted), "{wanted}: {faults}");
    }
}

#[test]
fn a_run_that_names_files_elsewhere_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let run = kept(folder.path(), 1, settings(folder.path(), WriteBy::Cached));
    let text = fs::read_to_string(run.join(RUN)).unwrap();
    for (from, to, wanted) in [
        ("\"a\"", "\"../a\"", "files outside of its folder"),
        ("daqmeter-run.v1", "daqmeter-run.v2", "`daqmeter-run.v2`; daqmeter-run.v1 is wanted"),
        ("{", "[", "run.json"),
    ] {
        fs::write(run.join(RUN), text.replacen(from, to, 1)).unwrap();
        let error = KeptRun::read(&run).unwrap_err();
        assert!(error.0.contains(wanted), "{error}");
    }
    assert!(KeptRun::read(folder.path()).unwrap_err().0.contains("name the folder of a kept run"));
}
