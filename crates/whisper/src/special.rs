//! Ids of the special tokens.

use crate::error::Error;
use crate::languages::{LANGUAGES, Language};
use crate::options::{Options, Task};

/// Timestamp tokens from 0.00 s to 30.00 s.
const TIMESTAMPS: u32 = 1501;
/// translate, transcribe, startoflm, startofprev, nospeech, notimestamps.
const TASK_TOKENS: u32 = 6;
/// Size of the GPT-2 vocabulary of the English-only models.
const ENGLISH_TEXT_TOKENS: u32 = 50256;

/// Special token ids. They follow the text tokens in a fixed order (openai/whisper `tokenizer.py`), so
/// the vocabulary size determines them; many files do not list the timestamp tokens.
///
/// ```text
/// text … eot sot languages… translate transcribe startoflm startofprev nospeech notimestamps 0.00 … 30.00
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpecialTokens {
    /// `<|endoftext|>`; smaller ids are text.
    pub eot: u32,
    /// `<|startoftranscript|>`.
    pub sot: u32,
    /// `<|translate|>`.
    pub translate: u32,
    /// `<|transcribe|>`.
    pub transcribe: u32,
    /// `<|startoflm|>`.
    pub start_of_lm: u32,
    /// `<|startofprev|>`.
    pub start_of_prev: u32,
    /// `<|nospeech|>` or `<|nocaptions|>`.
    pub no_speech: u32,
    /// `<|notimestamps|>`.
    pub no_timestamps: u32,
    /// `<|0.00|>`; it and all larger ids are timestamps, in steps of 0.02 s.
    pub timestamp_begin: u32,
    /// Number of language tokens.
    pub n_languages: u32,
    /// Whether the model has languages other than English.
    pub multilingual: bool,
}

impl SpecialTokens {
    /// Computes the ids for a vocabulary of `vocab_size` tokens.
    ///
    /// # Errors
    /// If no Whisper model has a vocabulary of this size.
    pub fn new(vocab_size: usize) -> Result<Self, Error> {
        let wrong = || Error::VocabSize { got: vocab_size };
        let multilingual = vocab_size > 51864;
        let eot = ENGLISH_TEXT_TOKENS + u32::from(multilingual);
        let size = u32::try_from(vocab_size).map_err(|_| wrong())?;
        let n_languages = size.checked_sub(eot + 2 + TASK_TOKENS + TIMESTAMPS).ok_or_else(wrong)?;
        if !(99..=LANGUAGES.len() as u32).contains(&n_languages) {
            return Err(wrong());
        }
        let sot = eot + 1;
        let translate = sot + 1 + n_languages;
        Ok(Self {
            eot,
            sot,
            translate,
            transcribe: translate + 1,
            start_of_lm: translate + 2,
            start_of_prev: translate + 3,
            no_speech: translate + 4,
            no_timestamps: translate + 5,
            timestamp_begin: translate + 6,
            n_languages,
            multilingual,
        })
    }

    /// Number of tokens of the vocabulary.
    pub(crate) fn vocab_size(&self) -> u32 {
        self.timestamp_begin + TIMESTAMPS
    }

    /// Token of `language`; `None` if the model has none.
    #[must_use]
    pub fn language(&self, language: Language) -> Option<u32> {
        let index = LANGUAGES.iter().position(|l| l.code == language.code)? as u32;
        (index < self.n_languages).then_some(self.sot + 1 + index)
    }

    /// Languages in token order from `sot + 1`.
    #[must_use]
    pub fn languages(&self) -> &'static [Language] {
        &LANGUAGES[..self.n_languages as usize]
    }

    /// Language of a recording; `None` if it must be detected.
    pub(crate) fn known_language(&self, options: &Options) -> Result<Option<Language>, Error> {
        let english = Language::find("en");
        if !self.multilingual {
            if let Some(other) = options.language.filter(|l| Some(*l) != english) {
                let expected = "en (the model is English-only)";
                return Err(Error::Language { got: other.name.to_owned(), expected });
            }
            if options.task == Task::Translate {
                let expected = "transcribe (the model is English-only)";
                let got = "translate".to_owned();
                return Err(Error::Option { option: "task", expected, got });
            }
            return Ok(english);
        }
        if let Some(other) = options.languages.iter().find(|&&l| self.language(l).is_none()) {
            let expected = "languages of the model";
            return Err(Error::Language { got: other.name.to_owned(), expected });
        }
        Ok(options.language)
    }

    /// Token of `task`.
    #[must_use]
    pub fn task(&self, task: Task) -> u32 {
        match task {
            Task::Transcribe => self.transcribe,
            Task::Translate => self.translate,
        }
    }

    /// Whether `token` is a timestamp.
    #[must_use]
    pub fn is_timestamp(&self, token: u32) -> bool {
        token >= self.timestamp_begin
    }
}

#[cfg(test)]
mod tests {
    use super::SpecialTokens;

    #[test]
    fn ids_match_the_published_vocabularies() {
        let en = SpecialTokens::new(51864).unwrap();
        assert_eq!(
            (en.eot, en.sot, en.no_timestamps, en.timestamp_begin),
            (50256, 50257, 50362, 50363)
        );
        let v2 = SpecialTokens::new(51865).unwrap();
        assert_eq!(
            (v2.eot, v2.translate, v2.no_speech, v2.timestamp_begin),
            (50257, 50358, 50362, 50364)
        );
        let v3 = SpecialTokens::new(51866).unwrap();
        assert_eq!((v3.n_languages, v3.transcribe, v3.timestamp_begin), (100, 50360, 50365));
    }

    #[test]
    fn other_sizes_are_errors() {
        for size in [0, 50257, 51863, 51867, usize::MAX] {
            assert!(SpecialTokens::new(size).is_err(), "{size}");
        }
    }
}
