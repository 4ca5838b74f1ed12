use super::error::EventError;

/// Splits `{a/x,y/,b},c` into groups of texts: commas within slashes belong to the event.
pub(super) fn split_groups(text: &str) -> Result<Vec<Vec<String>>, EventError> {
    let mut reader = Reader::default();
    text.chars()
        .try_for_each(|letter| reader.take(letter))
        .and_then(|()| reader.end())
        .map_err(|problem| EventError::new(text, format!(": {problem}")))
}

#[derive(Default)]
struct Reader {
    groups: Vec<Vec<String>>,
    group: Option<Vec<String>>,
    event: String,
    in_slashes: bool,
}

impl Reader {
    fn take(&mut self, letter: char) -> Result<(), &'static str> {
        match letter {
            '{' if !self.in_slashes => {
                if self.group.replace(Vec::new()).is_some() {
                    return Err("groups do not nest");
                }
            }
            '}' if !self.in_slashes => {
                self.end_event();
                let group = self.group.take().ok_or("a brace is closed that was not opened")?;
                self.groups.push(group);
            }
            ',' if !self.in_slashes => self.end_event(),
            _ => {
                self.in_slashes ^= letter == '/';
                self.event.push(letter);
            }
        }
        Ok(())
    }

    fn end_event(&mut self) {
        let event = std::mem::take(&mut self.event).trim().to_owned();
        match &mut self.group {
            _ if event.is_empty() => {}
            Some(group) => group.push(event),
            None => self.groups.push(vec![event]),
        }
    }

    fn end(mut self) -> Result<Vec<Vec<String>>, &'static str> {
        if self.group.is_some() {
            return Err("a brace is not closed");
        }
        if self.in_slashes {
            return Err("the second slash is missing: PMU/EVENT/");
        }
        self.end_event();
        self.groups.retain(|group| !group.is_empty());
        if self.groups.is_empty() { Err("no event is named") } else { Ok(self.groups) }
    }
}
