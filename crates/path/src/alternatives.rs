//! Other values for fields of a path's file, which may make it faster. `path explain` tries them.

use daqmeter_harness::TomlText;

use crate::definition::Path;
use crate::definition::setting::Setting;

/// Fields of a path or of its stages, and their values. Blocks fit the first level of caches, the
/// second, or the last.
const TRIED: [(&str, &[&str]); 3] = [
    ("block", &["16KiB", "64KiB", "256KiB", "1MiB"]),
    ("by", &["memcpy", "rep-movsb", "avx2", "avx2-nt", "avx512", "avx512-nt"]),
    ("store", &["cached", "non-temporal"]),
];

impl Path {
    /// Paths with another value for one field, which is written as for `--set`. Those that this
    /// host or the elements do not allow are left out.
    pub fn alternatives(&self) -> Vec<(String, Path)> {
        let stages = (1..=self.stages.len()).map(|stage| format!("stage.{stage}."));
        let places: Vec<String> = [String::new()].into_iter().chain(stages).collect();
        let values = TRIED.iter().flat_map(|(field, all)| all.iter().map(move |one| (field, *one)));
        let settings = values.flat_map(|(field, value)| {
            places.iter().map(move |place| Setting::new(&format!("{place}{field}"), value))
        });
        settings.filter_map(|one| Some((one.to_string(), self.changed(one)?))).collect()
    }

    /// Returns the path with that setting; `None` if it is not possible, or changes nothing.
    fn changed(&self, setting: Setting) -> Option<Path> {
        let with = [&self.with[..], &[setting]].concat();
        let path = Path::of(&TomlText::new(&self.name, &self.text), &with).ok()?;
        let work = |path: &Path| format!("{} {:?}", path.block_bytes, path.stages);
        (work(&path) != work(self)).then_some(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_other_blocks_copies_and_stores_if_its_elements_take_them() {
        let tried = |path: &str| {
            let all = Path::load(path).unwrap().alternatives();
            all.into_iter().map(|(what, _)| what).collect::<Vec<_>>()
        };
        let pattern = tried("pattern");
        assert_eq!(pattern[..3], ["block=16KiB", "block=256KiB", "block=1MiB"]);
        assert!(pattern[3..].iter().all(|what| what.starts_with("stage.1.by=")), "{pattern:?}");
        assert!(!pattern.contains(&"stage.1.by=memcpy".to_owned()), "{pattern:?}");
        assert!(tried("file-replay").contains(&"stage.1.store=non-temporal".to_owned()));
        assert_eq!(tried("felix-readout"), [""; 0], "a card has its own blocks");
    }
}
