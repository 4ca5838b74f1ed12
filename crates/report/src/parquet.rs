//! Tables as Parquet files, which DuckDB, pandas and Polars read as they are.

mod names;

use std::io::Write;
use std::sync::Arc;

use parquet::basic::{Compression, ConvertedType, Encoding, Repetition, Type as Physical};
use parquet::data_type::{BoolType, DataType, DoubleType, Int64Type};
pub use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{ColumnPath, Type};

use crate::frame::{Column, Frame};

impl Frame {
    /// Parquet, Snappy-compressed, in one row group.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn parquet(&self, sink: impl Write + Send) -> Result<(), ParquetError> {
        let mut file = self.begin_parquet(sink)?;
        self.append_to(&mut file)?;
        file.close().map(drop)
    }

    /// A Parquet file with these columns and no row yet.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn begin_parquet<W: Write + Send>(
        &self,
        sink: W,
    ) -> Result<SerializedFileWriter<W>, ParquetError> {
        let field = |(name, column): &(String, Column)| {
            let (physical, converted) = match column {
                Column::Text(_) => (Physical::BYTE_ARRAY, ConvertedType::UTF8),
                Column::Int(_) => (Physical::INT64, ConvertedType::NONE),
                Column::Float(_) => (Physical::DOUBLE, ConvertedType::NONE),
                Column::Flag(_) => (Physical::BOOLEAN, ConvertedType::NONE),
                Column::Time(_) => (Physical::INT64, ConvertedType::TIMESTAMP_MILLIS),
            };
            let built = Type::primitive_type_builder(name, physical)
                .with_repetition(Repetition::OPTIONAL)
                .with_converted_type(converted)
                .build()?;
            Ok(Arc::new(built))
        };
        let fields = self.columns.iter().map(field).collect::<Result<Vec<_>, ParquetError>>()?;
        let schema = Arc::new(Type::group_type_builder("daqmeter").with_fields(fields).build()?);
        let mut properties = WriterProperties::builder().set_compression(Compression::SNAPPY);
        for (name, column) in &self.columns {
            if matches!(column, Column::Int(_) | Column::Time(_)) {
                // Times of samples are all different: a dictionary of them is work for nothing. What rows have in common takes no bits.
                let path = ColumnPath::from(name.as_str());
                properties = properties
                    .set_column_dictionary_enabled(path.clone(), false)
                    .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
            }
        }
        let properties = properties.build();
        SerializedFileWriter::new(sink, schema, Arc::new(properties))
    }

    /// Appends the rows, as a row group, to a file with the same columns.
    ///
    /// # Errors
    /// Those of the sink, and when the columns are others.
    pub fn append_to<W: Write + Send>(
        &self,
        file: &mut SerializedFileWriter<W>,
    ) -> Result<(), ParquetError> {
        let schema = file.schema_descr().clone();
        let mut group = file.next_row_group()?;
        for ((_, column), descr) in self.columns.iter().zip(schema.columns()) {
            match column {
                Column::Text(names) => names::append(&mut group, Arc::clone(descr), names)?,
                Column::Flag(values) => write_column::<BoolType, W>(&mut group, values)?,
                Column::Int(values) | Column::Time(values) => {
                    write_column::<Int64Type, W>(&mut group, values)?
                }
                Column::Float(values) => write_column::<DoubleType, W>(&mut group, values)?,
            }
        }
        group.close().map(drop)
    }
}

/// Appends the values as the next column of a row group.
fn write_column<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[Option<T::T>],
) -> Result<(), ParquetError> {
    let mut sink = group
        .next_column()?
        .ok_or_else(|| ParquetError::General("a column too many".to_owned()))?;
    let levels: Vec<i16> = values.iter().map(|value| i16::from(value.is_some())).collect();
    let there: Vec<T::T> = values.iter().flatten().cloned().collect();
    sink.typed::<T>().write_batch(&there, Some(&levels), None)?;
    sink.close()
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;

    use crate::examples::{example, waived};
    use crate::export::{SampleParts, summary};

    #[test]
    fn parts_become_row_groups_of_one_file() {
        let mut rows = SampleParts::new(5);
        let mut parts = rows.add(&example());
        parts.extend(rows.finish());
        let mut bytes = Vec::new();
        let mut file = parts[0].begin_parquet(&mut bytes).unwrap();
        parts.iter().for_each(|part| part.append_to(&mut file).unwrap());
        file.close().unwrap();
        let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
        assert_eq!(
            (reader.num_row_groups(), reader.metadata().file_metadata().num_rows()),
            (3, 12)
        );
    }

    #[test]
    fn parquet_has_moments_flags_and_the_host() {
        let mut lost = waived();
        lost.time_utc.clear();
        let frame = summary(&[example(), lost]);
        let mut bytes = Vec::new();
        frame.parquet(&mut bytes).unwrap();
        let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
        let file = reader.metadata().file_metadata();
        let kind = |wanted: &str| {
            let fields = file.schema().get_fields().iter();
            let field = fields.clone().find(|field| field.name() == wanted).unwrap();
            (
                field.get_physical_type().to_string(),
                field.get_basic_info().converted_type().to_string(),
            )
        };
        assert_eq!(kind("time_utc"), ("INT64".into(), "TIMESTAMP_MILLIS".into()));
        assert_eq!(kind("emulated").0, "BOOLEAN");
        assert_eq!(kind("host").1, "UTF8");
        let place = |wanted: &str| {
            let mut names = frame.columns.iter();
            names.position(|(name, _)| name == wanted).unwrap()
        };
        let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        assert_eq!(rows[0].get_timestamp_millis(place("time_utc")).unwrap(), 1_795_230_000_000);
        assert!(rows[0].get_bool(place("emulated")).unwrap());
        assert_eq!(rows[0].get_string(place("label")).unwrap(), "read-out");
        assert!(frame.csv().contains(",2026-11-21T03:00:00.000Z,"));
        assert!(rows[4].get_timestamp_millis(place("time_utc")).is_err(), "a hole");
    }

    #[test]
    fn parquet_is_read_back_with_its_holes() {
        let mut bytes = Vec::new();
        let frame = summary(&[example(), waived()]);
        frame.parquet(&mut bytes).unwrap();
        let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
        let names: Vec<String> = reader
            .metadata()
            .file_metadata()
            .schema()
            .get_fields()
            .iter()
            .map(|field| field.name().to_owned())
            .collect();
        assert_eq!(names, frame.columns.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>());
        let place = |wanted: &str| names.iter().position(|name| name == wanted).unwrap();
        let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        assert_eq!(rows.len(), 5);
        assert_eq!(rows[0].get_double(place("rate_bytes_per_s")).unwrap(), 1.2e9);
        assert_eq!(rows[4].get_string(place("outcome")).unwrap(), "waived");
        assert!(rows[4].get_double(place("median_ns")).is_err(), "a hole");
        assert_eq!(
            rows[4].get_string(place("param.function")).unwrap(),
            "all",
            "a column of numbers and names is text"
        );
    }
}
