//! Languages in the order of their tokens (openai/whisper `tokenizer.py`).

/// A language of the multilingual models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Language {
    /// ISO 639-1 code, or Whisper's own code.
    pub code: &'static str,
    /// Lower-case English name.
    pub name: &'static str,
}

impl Language {
    /// Finds a language by code, English name or alias, ignoring case and what follows a code (`de-DE`, `zh_Hans_CN`).
    #[must_use]
    pub fn find(code_or_name: &str) -> Option<Self> {
        let whole = code_or_name.to_lowercase();
        let base = whole.split(['-', '_']).next().filter(|base| (2..=3).contains(&base.len()));
        [Some(&*whole), base].into_iter().flatten().find_map(|name| {
            let alias = ALIASES.iter().find(|(alias, _)| *alias == name).map(|(_, code)| *code);
            let name = alias.unwrap_or(name);
            LANGUAGES.iter().copied().find(|l| l.code == name || l.name == name)
        })
    }
}

/// All languages, in token order; models before large-v3 have the first 99.
pub static LANGUAGES: &[Language] = &[
    Language { code: "en", name: "english" },
    Language { code: "zh", name: "chinese" },
    Language { code: "de", name: "german" },
    Language { code: "es", name: "spanish" },
    Language { code: "ru", name: "russian" },
    Language { code: "ko", name: "korean" },
    Language { code: "fr", name: "french" },
    Language { code: "ja", name: "japanese" },
    Language { code: "pt", name: "portuguese" },
    Language { code: "tr", name: "turkish" },
    Language { code: "pl", name: "polish" },
    Language { code: "ca", name: "catalan" },
    Language { code: "nl", name: "dutch" },
    Language { code: "ar", name: "arabic" },
    Language { code: "sv", name: "swedish" },
    Language { code: "it", name: "italian" },
    Language { code: "id", name: "indonesian" },
    Language { code: "hi", name: "hindi" },
    Language { code: "fi", name: "finnish" },
    Language { code: "vi", name: "vietnamese" },
    Language { code: "he", name: "hebrew" },
    Language { code: "uk", name: "ukrainian" },
    Language { code: "el", name: "greek" },
    Language { code: "ms", name: "malay" },
    Language { code: "cs", name: "czech" },
    Language { code: "ro", name: "romanian" },
    Language { code: "da", name: "danish" },
    Language { code: "hu", name: "hungarian" },
    Language { code: "ta", name: "tamil" },
    Language { code: "no", name: "norwegian" },
    Language { code: "th", name: "thai" },
    Language { code: "ur", name: "urdu" },
    Language { code: "hr", name: "croatian" },
    Language { code: "bg", name: "bulgarian" },
    Language { code: "lt", name: "lithuanian" },
    Language { code: "la", name: "latin" },
    Language { code: "mi", name: "maori" },
    Language { code: "ml", name: "malayalam" },
    Language { code: "cy", name: "welsh" },
    Language { code: "sk", name: "slovak" },
    Language { code: "te", name: "telugu" },
    Language { code: "fa", name: "persian" },
    Language { code: "lv", name: "latvian" },
    Language { code: "bn", name: "bengali" },
    Language { code: "sr", name: "serbian" },
    Language { code: "az", name: "azerbaijani" },
    Language { code: "sl", name: "slovenian" },
    Language { code: "kn", name: "kannada" },
    Language { code: "et", name: "estonian" },
    Language { code: "mk", name: "macedonian" },
    Language { code: "br", name: "breton" },
    Language { code: "eu", name: "basque" },
    Language { code: "is", name: "icelandic" },
    Language { code: "hy", name: "armenian" },
    Language { code: "ne", name: "nepali" },
    Language { code: "mn", name: "mongolian" },
    Language { code: "bs", name: "bosnian" },
    Language { code: "kk", name: "kazakh" },
    Language { code: "sq", name: "albanian" },
    Language { code: "sw", name: "swahili" },
    Language { code: "gl", name: "galician" },
    Language { code: "mr", name: "marathi" },
    Language { code: "pa", name: "punjabi" },
    Language { code: "si", name: "sinhala" },
    Language { code: "km", name: "khmer" },
    Language { code: "sn", name: "shona" },
    Language { code: "yo", name: "yoruba" },
    Language { code: "so", name: "somali" },
    Language { code: "af", name: "afrikaans" },
    Language { code: "oc", name: "occitan" },
    Language { code: "ka", name: "georgian" },
    Language { code: "be", name: "belarusian" },
    Language { code: "tg", name: "tajik" },
    Language { code: "sd", name: "sindhi" },
    Language { code: "gu", name: "gujarati" },
    Language { code: "am", name: "amharic" },
    Language { code: "yi", name: "yiddish" },
    Language { code: "lo", name: "lao" },
    Language { code: "uz", name: "uzbek" },
    Language { code: "fo", name: "faroese" },
    Language { code: "ht", name: "haitian creole" },
    Language { code: "ps", name: "pashto" },
    Language { code: "tk", name: "turkmen" },
    Language { code: "nn", name: "nynorsk" },
    Language { code: "mt", name: "maltese" },
    Language { code: "sa", name: "sanskrit" },
    Language { code: "lb", name: "luxembourgish" },
    Language { code: "my", name: "myanmar" },
    Language { code: "bo", name: "tibetan" },
    Language { code: "tl", name: "tagalog" },
    Language { code: "mg", name: "malagasy" },
    Language { code: "as", name: "assamese" },
    Language { code: "tt", name: "tatar" },
    Language { code: "haw", name: "hawaiian" },
    Language { code: "ln", name: "lingala" },
    Language { code: "ha", name: "hausa" },
    Language { code: "ba", name: "bashkir" },
    Language { code: "jw", name: "javanese" },
    Language { code: "su", name: "sundanese" },
    Language { code: "yue", name: "cantonese" },
];

/// Further names (openai/whisper `TO_LANGUAGE_CODE`).
const ALIASES: &[(&str, &str)] = &[
    ("burmese", "my"),
    ("valencian", "ca"),
    ("flemish", "nl"),
    ("haitian", "ht"),
    ("letzeburgesch", "lb"),
    ("pushto", "ps"),
    ("panjabi", "pa"),
    ("moldavian", "ro"),
    ("moldovan", "ro"),
    ("sinhalese", "si"),
    ("castilian", "es"),
    ("mandarin", "zh"),
];

#[cfg(test)]
mod tests {
    use super::{LANGUAGES, Language};

    #[test]
    fn finds_codes_names_and_aliases() {
        assert_eq!(Language::find("DE"), Language::find("German"));
        assert_eq!(Language::find("castilian").map(|l| l.code), Some("es"));
        assert_eq!(Language::find("xx"), None);
    }

    #[test]
    fn regions_make_no_difference() {
        for (regional, code) in
            [("de-DE", "de"), ("zh-CN", "zh"), ("pt_BR", "pt"), ("yue-HK", "yue")]
        {
            assert_eq!(Language::find(regional).map(|l| l.code), Some(code));
        }
        for wrong in ["xx-DE", "-de", "klingon-de", "german-at", ""] {
            assert_eq!(Language::find(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn codes_are_unique() {
        for (i, a) in LANGUAGES.iter().enumerate() {
            assert!(LANGUAGES[i + 1..].iter().all(|b| a.code != b.code && a.name != b.name));
        }
    }
}
