//! Tables as Parquet files.

use std::io::Write;
use std::sync::Arc;

use parquet::basic::{Compression, ConvertedType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;

use crate::export::{Cell, DataColumn, DataFrame};

/// Writes tables with equal columns as row groups of one file, Snappy-compressed.
///
/// # Errors
/// Returns errors of the sink, and an error for different columns.
pub(crate) fn write<W: Write + Send>(
    frames: impl IntoIterator<Item = DataFrame>,
    sink: W,
) -> Result<(), ParquetError> {
    let mut frames = frames.into_iter().peekable();
    let columns = frames.peek().map_or(&[][..], |frame| &frame.columns);
    let field = |column: &DataColumn| {
        let (physical, converted) = match column.widest() {
            Cell::None | Cell::Text(_) => (Physical::BYTE_ARRAY, ConvertedType::UTF8),
            Cell::Int(_) => (Physical::INT64, ConvertedType::NONE),
            Cell::Float(_) => (Physical::DOUBLE, ConvertedType::NONE),
            Cell::Flag(_) => (Physical::BOOLEAN, ConvertedType::NONE),
            Cell::Time(_) => (Physical::INT64, ConvertedType::TIMESTAMP_MILLIS),
        };
        let field = Type::primitive_type_builder(&column.name, physical);
        let field = field.with_repetition(Repetition::OPTIONAL).with_converted_type(converted);
        field.build().map(Arc::new)
    };
    let fields = columns.iter().map(field).collect::<Result<Vec<_>, _>>()?;
    let schema = Arc::new(Type::group_type_builder("daqmeter").with_fields(fields).build()?);
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let mut file = SerializedFileWriter::new(sink, schema, Arc::new(properties))?;
    for frame in frames {
        let mut group = file.next_row_group()?;
        for column in &frame.columns {
            match column.widest() {
                Cell::None | Cell::Text(_) => {
                    append::<ByteArrayType, W>(&mut group, column, |cell| {
                        (*cell != Cell::None).then(|| ByteArray::from(cell.to_string().as_str()))
                    })?
                }
                Cell::Flag(_) => append::<BoolType, W>(&mut group, column, |cell| {
                    cell.int().map(|flag| flag != 0)
                })?,
                Cell::Int(_) | Cell::Time(_) => {
                    append::<Int64Type, W>(&mut group, column, Cell::int)?;
                }
                Cell::Float(_) => append::<DoubleType, W>(&mut group, column, Cell::float)?,
            }
        }
        group.close()?;
    }
    file.close().map(drop)
}

fn append<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    column: &DataColumn,
    value: impl Fn(&Cell) -> Option<T::T>,
) -> Result<(), ParquetError> {
    let excess = || ParquetError::General("a column too many".to_owned());
    let mut sink = group.next_column()?.ok_or_else(excess)?;
    let values: Vec<Option<T::T>> = column.cells().map(value).collect();
    let levels: Vec<i16> = values.iter().map(|value| i16::from(value.is_some())).collect();
    let present: Vec<T::T> = values.into_iter().flatten().collect();
    sink.typed::<T>().write_batch(&present, Some(&levels), None)?;
    sink.close()
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;

    use super::*;
    use crate::examples::{example, waived};
    use crate::export::{DataSet, sample_parts, stages};

    fn read(frames: impl IntoIterator<Item = DataFrame>) -> SerializedFileReader<bytes::Bytes> {
        let mut bytes = Vec::new();
        write(frames, &mut bytes).unwrap();
        SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap()
    }

    #[test]
    fn parts_become_row_groups_of_one_file() {
        let reader = read(sample_parts(&[example(), example(), example()], 13));
        let rows = reader.metadata().file_metadata().num_rows();
        assert_eq!((reader.num_row_groups(), rows), (2, 36));
    }

    #[test]
    fn parts_of_a_data_set_have_equal_columns_and_types_and_no_host() {
        let mut set = DataSet::default();
        set.add(&[example(), waived()]);
        let [a, b] = [example(), waived()].map(|record| {
            let part = set.stages(&[record]).without_host();
            read([part]).metadata().file_metadata().schema().clone()
        });
        assert_eq!(a, b);
        assert!(a.get_fields().iter().all(|field| field.name() != "host"));
    }

    #[test]
    fn parquet_has_moments_flags_names_and_holes() {
        let mut lost = waived();
        lost.time_utc.clear();
        let frame = stages(&[example(), lost]);
        let names: Vec<String> = frame.columns.iter().map(|column| column.name.clone()).collect();
        let place = |wanted: &str| names.iter().position(|name| name == wanted).unwrap();
        assert!(frame.csv(true).contains(",2026-11-21T03:00:00.000Z,"));
        let reader = read([frame]);
        let schema = reader.metadata().file_metadata().schema();
        let fields: Vec<&str> = schema.get_fields().iter().map(|field| field.name()).collect();
        assert_eq!(fields, names);
        let types = ["time_utc", "emulated", "host"].map(|wanted| {
            let field = &schema.get_fields()[place(wanted)];
            let converted = field.get_basic_info().converted_type();
            format!("{} {converted}", field.get_physical_type())
        });
        assert_eq!(types, ["INT64 TIMESTAMP_MILLIS", "BOOLEAN NONE", "BYTE_ARRAY UTF8"]);
        let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        assert_eq!(rows.len(), 5);
        assert_eq!(rows[0].get_timestamp_millis(place("time_utc")).unwrap(), 1_795_230_000_000);
        assert!(rows[0].get_bool(place("emulated")).unwrap());
        assert_eq!(rows[0].get_string(place("label")).unwrap(), "read-out");
        assert_eq!(rows[0].get_double(place("rate_bytes_per_s")).unwrap(), 1.2e9);
        assert_eq!(rows[4].get_string(place("outcome")).unwrap(), "waived");
        assert!(rows[4].get_timestamp_millis(place("time_utc")).is_err(), "a hole");
        assert!(rows[4].get_double(place("median_ns")).is_err(), "a hole");
        assert_eq!(rows[4].get_string(place("param.function")).unwrap(), "all");
    }
}
