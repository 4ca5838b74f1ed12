//! Cards that are read out in this process, for watchers of a run: metrics of `readout run`.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::Card;

/// Cards by the names of their scenarios. The card of a chain that has ended is dropped.
static CARDS: Mutex<Vec<(String, Weak<Mutex<Card>>)>> = Mutex::new(Vec::new());

pub fn register(name: &str, card: &Arc<Mutex<Card>>) {
    let mut cards = CARDS.lock().unwrap_or_else(PoisonError::into_inner);
    cards.retain(|(_, card)| card.strong_count() > 0);
    cards.push((name.to_owned(), Arc::downgrade(card)));
}

/// Calls `look` with the name and the card of each running chain, which waits meanwhile.
pub fn each_card(mut look: impl FnMut(&str, &Card)) {
    let cards = CARDS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for (name, card) in cards {
        if let Some(card) = card.upgrade() {
            look(&name, &card.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}
