//! The text of a plan, and messages that name its file and line.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use daqmeter_harness::{TomlText, text_file, text_input};
use daqmeter_record::units::parse_duration;
use toml::Spanned;

use super::file::PlanFile;
use crate::shipped::SHIPPED;

const MAX_TIME: Duration = Duration::from_secs(24 * 3600);

/// Error of a plan; one line that names file, line and field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PlanError(pub(super) String);

pub(super) struct Source {
    pub(super) toml: TomlText,
    pub(super) folder: Option<PathBuf>,
}

impl Source {
    pub(super) fn find(name_or_path: &str, beside: Option<&Path>) -> Result<Source, String> {
        if let Some((name, text)) = SHIPPED.iter().find(|(name, _)| *name == name_or_path) {
            return Ok(Source {
                toml: TomlText { name: (*name).to_owned(), text: (*text).to_owned() },
                folder: None,
            });
        }
        let path =
            beside.map_or_else(|| PathBuf::from(name_or_path), |folder| folder.join(name_or_path));
        // A plan that the command line names may be a pipe, but an included one may not.
        let read = if beside.is_some() { text_file } else { text_input };
        let text = read(&path).map_err(|error| {
            let shipped: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
            format!(
                "plan {}: {error}; plans that ship with daqmeter: {}",
                path.display(),
                shipped.join(", ")
            )
        })?;
        Ok(Source {
            toml: TomlText { name: path.display().to_string(), text },
            folder: path.parent().map(Path::to_owned),
        })
    }

    pub(super) fn line(&self, span: Range<usize>) -> usize {
        self.toml.line(span)
    }

    pub(super) fn error(
        &self,
        span: Range<usize>,
        field: &str,
        problem: impl std::fmt::Display,
    ) -> PlanError {
        PlanError(self.toml.error(span, field, problem))
    }

    pub(super) fn duration(
        &self,
        field: &str,
        text: &Spanned<String>,
    ) -> Result<Duration, PlanError> {
        let parsed =
            parse_duration(text.as_ref()).map_err(|error| self.error(text.span(), field, error))?;
        if parsed.is_zero() {
            Err(self.error(text.span(), field, "a time above zero is wanted"))
        } else {
            Ok(parsed)
        }
    }

    pub(super) fn time(&self, field: &str, text: &Spanned<String>) -> Result<Duration, PlanError> {
        let time = self.duration(field, text)?;
        if time > MAX_TIME {
            Err(self.error(text.span(), field, "a point takes at most 24h"))
        } else {
            Ok(time)
        }
    }

    pub(super) fn file(&self) -> Result<PlanFile, PlanError> {
        self.toml.parse().map_err(PlanError)
    }
}
