//! Changed fields of a path's file: `block=128KiB;stage.2.threads=3`.

use toml::{Spanned, Value};

use crate::file::{Part, PathFile};

/// Changes the fields; messages about their values name the lines of those that were there before.
pub(crate) fn apply(file: &mut PathFile, with: &[String]) -> Result<(), String> {
    for setting in with {
        one(file, setting).map_err(|problem| format!("with `{setting}`: {problem}"))?;
    }
    Ok(())
}

fn one(file: &mut PathFile, setting: &str) -> Result<(), String> {
    let Some((name, value)) = setting.split_once('=') else {
        return Err("FIELD=VALUE is wanted, such as block=128KiB".to_owned());
    };
    match name.split('.').collect::<Vec<_>>()[..] {
        ["block"] => file.block = Spanned::new(file.block.span(), value.to_owned()),
        ["buffers"] => {
            let number = value.parse().map_err(|_| "a number is wanted")?;
            file.buffers = Some(beside(file, file.buffers.as_ref(), number));
        }
        ["rate"] => file.rate = Some(beside(file, file.rate.as_ref(), value.to_owned())),
        ["lossless"] => {
            let is = value.parse().map_err(|_| "true or false is wanted")?;
            file.lossless = Some(beside(file, file.lossless.as_ref(), is));
        }
        ["pages"] => file.pages = Some(beside(file, file.pages.as_ref(), value.to_owned())),
        ["source", field] => set(&mut file.source, field, value),
        ["sink", field] => set(&mut file.sink, field, value),
        ["stage", number, field] => {
            let stages = file.stage.len();
            let at = number.parse::<usize>().ok().and_then(|at| at.checked_sub(1));
            let stage = at.and_then(|at| file.stage.get_mut(at));
            let stage = stage.ok_or_else(|| match stages {
                0 => "there is no stage".to_owned(),
                _ => format!("there is no stage {number}; 1 to {stages} is wanted"),
            })?;
            set(stage, field, value);
        }
        _ => {
            return Err(
                "there is no such field; block, buffers, rate, lossless, pages, source.FIELD, stage.1.FIELD or sink.FIELD is wanted"
                    .to_owned(),
            );
        }
    }
    Ok(())
}

/// Value at the place of the previous one, or at that of the block's size.
fn beside<T>(file: &PathFile, before: Option<&Spanned<T>>, value: T) -> Spanned<T> {
    Spanned::new(before.map_or_else(|| file.block.span(), Spanned::span), value)
}

/// Sets a field to a TOML value; a text that TOML does not parse becomes a string.
fn set(part: &mut Part, field: &str, value: &str) {
    let read = toml::from_str::<toml::Table>(&format!("value = {value}"));
    let read = read.ok().and_then(|mut table| table.remove("value"));
    let value = read.unwrap_or_else(|| Value::String(value.to_owned()));
    let span = part.as_ref().get(field).map_or_else(|| part.span(), Spanned::span);
    part.get_mut().insert(field.to_owned(), Spanned::new(span, value));
}

#[cfg(test)]
mod tests {
    use crate::Path;

    fn with(with: &str) -> Result<Path, String> {
        let all: Vec<String> =
            with.split(';').filter(|one| !one.is_empty()).map(str::to_owned).collect();
        Path::load_with("felix-card", &all).map_err(|error| error.to_string())
    }

    #[test]
    fn a_field_gets_another_value_and_all_that_follows_from_it() {
        let path = with("block=128KiB;buffers=4;stage.1.threads=2;pages=base").unwrap();
        assert_eq!((path.block_bytes, path.buffers), (128 << 10, 4));
        assert_eq!(path.stages[0].threads, 2);
        assert_eq!(path.pages, daqmeter_sys::memory::Pages::Base);
        let paced = with("rate=2kHz;lossless=false").unwrap();
        assert_eq!((paced.rate_hz, paced.lossless), (Some(2000.0), false));
        assert_eq!(path.stages[1].out_bytes, 128 << 10);
        // File and text are equal: only the changes differ.
        let as_it_is = with("").unwrap();
        assert_eq!((&path.digest, &path.text), (&as_it_is.digest, &as_it_is.text));
        assert!(as_it_is.with.is_empty());
    }

    #[test]
    fn what_does_not_fit_names_the_setting_or_the_line_of_its_field() {
        for (setting, wanted) in [
            ("block", "with `block`: FIELD=VALUE is wanted"),
            ("speed=3", "with `speed=3`: there is no such field"),
            ("stage.9.threads=2", "there is no stage 9; 1 to 2 is wanted"),
            ("stage.0.threads=2", "there is no stage 0"),
            ("buffers=many", "a number is wanted"),
            ("lossless=perhaps", "true or false is wanted"),
            ("rate=fast", "rate"),
            ("buffers=0", "felix-card:3: buffers: is 0"),
            ("pages=large", "felix-card:3: pages: is `large`"),
            ("block=100", "felix-card:3: block: is 100; whole cache lines"),
            ("stage.1.threads=0", "stage 1: threads: is 0"),
            ("stage.2.congestion=none9", "stage 2: congestion: `none9` cannot be had here"),
            ("sink.path=x", "sink: path"),
        ] {
            let error = with(setting).err().unwrap_or_else(|| panic!("{setting}"));
            assert!(error.contains(wanted), "{setting}: {error}");
        }
    }
}
