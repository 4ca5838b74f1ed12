//! A column of names, written as what it is in memory: each different name once, and the place of each row's name by runs. The writer
//! of the library looks every value up again by its text, and compares it for the statistics, which took a third of an export.

use std::io::Write;

use bytes::Bytes;
use parquet::basic::{Compression, Encoding};
use parquet::column::page::{CompressedPage, Page, PageWriteSpec, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::statistics::Statistics;
use parquet::file::writer::{SerializedPageWriter, SerializedRowGroupWriter, TrackedWrite};
use parquet::schema::types::ColumnDescPtr;

use crate::frame::Names;

/// Longer names are not told as the least or the greatest of a column: a reader gains nothing from them.
const MAX_STATISTICS_BYTES: usize = 64;

/// Appends the names as the next column of a row group: a dictionary page and a data page (Apache Parquet format 2.10, "Encodings":
/// PLAIN and RLE_DICTIONARY). They are not compressed, as nothing is in them twice.
///
/// # Errors
/// Those of the sink.
pub(super) fn append<W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    descr: ColumnDescPtr,
    names: &Names,
) -> Result<(), ParquetError> {
    let mut chunk = TrackedWrite::new(Vec::new());
    let mut pages = SerializedPageWriter::new(&mut chunk);
    let dictionary = pages.write_page(uncompressed(dictionary_page(names)?))?;
    let data = pages.write_page(uncompressed(data_page(names)?))?;
    pages.close()?;
    let rows = names.places.len();
    let of_both = |bytes: fn(&PageWriteSpec) -> usize| count(bytes(&dictionary) + bytes(&data));
    let metadata = ColumnChunkMetaData::builder(descr)
        .set_compression(Compression::UNCOMPRESSED)
        .set_encodings(vec![Encoding::PLAIN, Encoding::RLE, Encoding::RLE_DICTIONARY])
        .set_total_compressed_size(of_both(|page| page.compressed_size)?)
        .set_total_uncompressed_size(of_both(|page| page.uncompressed_size)?)
        .set_num_values(count(rows)?)
        .set_dictionary_page_offset(Some(offset(&dictionary)?))
        .set_data_page_offset(offset(&data)?)
        .set_statistics(statistics(names))
        .build()?;
    let bytes = Bytes::from(chunk.into_inner()?);
    let written = ColumnCloseResult {
        bytes_written: bytes.len() as u64,
        rows_written: rows as u64,
        metadata,
        bloom_filter: None,
        column_index: None,
        offset_index: None,
    };
    group.append_column(&bytes, written)
}

fn uncompressed(page: Page) -> CompressedPage {
    let bytes = page.buffer().len();
    CompressedPage::new(page, bytes)
}

fn count<T: TryFrom<usize>>(count: usize) -> Result<T, ParquetError> {
    T::try_from(count)
        .map_err(|_| ParquetError::General(format!("{count} is more than a column can have")))
}

fn offset(page: &PageWriteSpec) -> Result<i64, ParquetError> {
    i64::try_from(page.offset).map_err(|error| ParquetError::General(error.to_string()))
}

/// Each name after its length.
fn dictionary_page(names: &Names) -> Result<Page, ParquetError> {
    let mut bytes = Vec::new();
    for name in &names.distinct {
        bytes.extend(count::<u32>(name.len())?.to_le_bytes());
        bytes.extend(name.as_bytes());
    }
    Ok(Page::DictionaryPage {
        buf: bytes.into(),
        num_values: count(names.distinct.len())?,
        encoding: Encoding::PLAIN,
        is_sorted: false,
    })
}

/// Which rows have a name, after the length of that; then the places of the names, after their width.
fn data_page(names: &Names) -> Result<Page, ParquetError> {
    let mut levels = Vec::new();
    let is_there = names.places.iter().map(|place| u32::from(place.is_some()));
    push_runs(is_there, 1, &mut levels);
    let mut bytes = count::<u32>(levels.len())?.to_le_bytes().to_vec();
    bytes.append(&mut levels);
    let greatest: u32 = count(names.distinct.len().saturating_sub(1))?;
    let width = u32::BITS - greatest.leading_zeros();
    bytes.push(u8::try_from(width).expect("at most 32 bits"));
    push_runs(names.places.iter().flatten().copied(), width, &mut bytes);
    Ok(Page::DataPage {
        buf: bytes.into(),
        num_values: count(names.places.len())?,
        encoding: Encoding::RLE_DICTIONARY,
        def_level_encoding: Encoding::RLE,
        rep_level_encoding: Encoding::RLE,
        statistics: None,
    })
}

/// Runs of equal values: twice the length of each in groups of seven bits, the lowest first, then the value in whole bytes.
fn push_runs(values: impl Iterator<Item = u32>, width_bits: u32, out: &mut Vec<u8>) {
    let value_bytes = width_bits.div_ceil(8) as usize;
    let mut push = |value: u32, length: u64| {
        let mut left = length << 1;
        while left >= 0x80 {
            out.push((left & 0x7f) as u8 | 0x80);
            left >>= 7;
        }
        out.push(left as u8);
        out.extend(&value.to_le_bytes()[..value_bytes]);
    };
    let mut values = values;
    let Some(mut last) = values.next() else {
        return;
    };
    let mut length = 1;
    for value in values {
        if value == last {
            length += 1;
        } else {
            push(last, length);
            (last, length) = (value, 1);
        }
    }
    push(last, length);
}

/// The least and the greatest name, where they are short, and how many rows have none.
fn statistics(names: &Names) -> Statistics {
    let ends = names.distinct.iter().min().zip(names.distinct.iter().max());
    let ends =
        ends.filter(|(least, greatest)| least.len().max(greatest.len()) <= MAX_STATISTICS_BYTES);
    let stored = |name: &String| ByteArray::from(name.as_str());
    let (least, greatest) = ends.map(|(a, b)| (stored(a), stored(b))).unzip();
    let holes = names.places.iter().filter(|place| place.is_none()).count();
    Statistics::byte_array(least, greatest, None, Some(holes as u64), false)
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;

    use super::*;
    use crate::frame::{Column, Frame};

    fn check(places: &[Option<u32>]) {
        let different = places.iter().flatten().max().map_or(0, |most| most + 1);
        let names = Names {
            distinct: (0..different).map(|at| format!("name {at}")).collect(),
            places: places.to_vec(),
        };
        let numbers = Column::Int(vec![Some(7); places.len()]);
        let columns = [Column::Text(names.clone()), numbers, Column::Text(names.clone())];
        let columns = ["a", "b", "c"].map(str::to_owned).into_iter().zip(columns);
        let frame = Frame { columns: columns.collect() };
        let mut bytes = Vec::new();
        frame.parquet(&mut bytes).unwrap();
        let reader = SerializedFileReader::new(Bytes::from(bytes)).unwrap();
        let rows = reader.get_row_iter(None).unwrap().map(Result::unwrap);
        let mut found = 0;
        for (row, name) in rows.zip(names.iter()) {
            assert_eq!(row.get_string(0).ok().map(String::as_str), name);
            assert_eq!(row.get_long(1).unwrap(), 7);
            assert_eq!(row.get_string(2).ok().map(String::as_str), name);
            found += 1;
        }
        assert_eq!(found, places.len());
        let group = reader.metadata().row_group(0);
        let told = group.column(2).statistics().unwrap();
        let holes = places.iter().filter(|place| place.is_none()).count();
        assert_eq!(told.null_count_opt(), Some(holes as u64));
        let least = told.min_bytes_opt().map(<[u8]>::to_vec);
        assert_eq!(least, (different > 0).then(|| b"name 0".to_vec()));
    }

    #[test]
    fn names_are_read_back_whatever_their_number_and_runs() {
        check(&[Some(0)]);
        check(&[None; 5]);
        check(&[Some(0); 100_000]);
        check(&[None, Some(0), Some(0), None, Some(1), Some(0)]);
        for different in [2, 3, 255, 256, 257, 70_000] {
            let one_each: Vec<_> = (0..different).map(Some).collect();
            check(&one_each);
            let runs = (0..different).flat_map(|at| vec![(at % 7 > 0).then_some(at); 3]);
            check(&runs.collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_long_name_is_not_told_as_the_least_or_the_greatest() {
        let names = Names {
            distinct: vec!["a".to_owned(), "b".repeat(MAX_STATISTICS_BYTES + 1)],
            places: vec![Some(0), Some(1)],
        };
        let told = statistics(&names);
        assert_eq!((told.min_bytes_opt(), told.max_bytes_opt()), (None, None));
        assert_eq!(told.null_count_opt(), Some(0));
    }
}
