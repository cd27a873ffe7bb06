//! The tokenizer's metadata of a GGUF file, for tests: this crate reads no files itself.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use stonechat_text::GgmlVocabulary;

/// Metadata values, as far as tokenizers have them.
#[derive(Debug, Default)]
struct Values {
    strings: HashMap<String, String>,
    numbers: HashMap<String, u64>,
    string_lists: HashMap<String, Vec<String>>,
    /// Raw little-endian elements.
    number_lists: HashMap<String, Vec<u8>>,
}

/// Reads the metadata at the start of a GGUF file; panics on anything unexpected.
pub(crate) fn read(path: &Path) -> GgmlVocabulary<'static> {
    let mut file = BufReader::new(File::open(path).unwrap());
    let mut header = [0; 24];
    file.read_exact(&mut header).unwrap();
    assert_eq!(&header[..4], b"GGUF");
    let n_values = u64::from_le_bytes(header[16..].try_into().unwrap());
    let mut values = Values::default();
    for _ in 0..n_values {
        let key = string(&mut file);
        match number(&mut file, 4) {
            8 => drop(values.strings.insert(key, string(&mut file))),
            9 => {
                let (kind, len) = (number(&mut file, 4), number(&mut file, 8));
                if kind == 8 {
                    let list = (0..len).map(|_| string(&mut file)).collect();
                    values.string_lists.insert(key, list);
                } else {
                    let mut bytes = vec![0; len as usize * size(kind)];
                    file.read_exact(&mut bytes).unwrap();
                    values.number_lists.insert(key, bytes);
                }
            }
            kind => drop(values.numbers.insert(key, number(&mut file, size(kind)))),
        }
    }
    values.vocabulary()
}

fn size(kind: u64) -> usize {
    match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        10..=12 => 8,
        _ => panic!("metadata type {kind}"),
    }
}

fn number(file: &mut impl Read, size: usize) -> u64 {
    let mut bytes = [0; 8];
    file.read_exact(&mut bytes[..size]).unwrap();
    u64::from_le_bytes(bytes)
}

fn string(file: &mut impl Read) -> String {
    let mut bytes = vec![0; number(file, 8) as usize];
    file.read_exact(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Values {
    fn vocabulary(mut self) -> GgmlVocabulary<'static> {
        let ggml = |name: &str| format!("tokenizer.ggml.{name}");
        let id = |name: &str| self.numbers.get(&ggml(name)).map(|&id| id as u32);
        let flag = |name: &str| self.numbers.get(&ggml(name)).map(|&flag| flag != 0);
        let words = |name: &str| -> Vec<[u8; 4]> {
            let bytes = self.number_lists.get(&ggml(name)).map_or(&[][..], Vec::as_slice);
            bytes.as_chunks().0.to_vec()
        };
        GgmlVocabulary {
            model: self.strings[&ggml("model")].clone().into(),
            pre: self.strings.get(&ggml("pre")).cloned().map(Cow::from),
            scores: words("scores").into_iter().map(f32::from_le_bytes).collect(),
            token_types: words("token_type").into_iter().map(i32::from_le_bytes).collect(),
            bos: id("bos_token_id"),
            eos: id("eos_token_id"),
            eot: id("eot_token_id"),
            eom: id("eom_token_id"),
            unk: id("unknown_token_id"),
            sep: id("seperator_token_id"),
            pad: id("padding_token_id"),
            cls: id("cls_token_id"),
            mask: id("mask_token_id"),
            fim_pre: id("fim_pre_token_id").or(id("prefix_token_id")),
            fim_suf: id("fim_suf_token_id").or(id("suffix_token_id")),
            fim_mid: id("fim_mid_token_id").or(id("middle_token_id")),
            fim_pad: id("fim_pad_token_id"),
            fim_rep: id("fim_rep_token_id"),
            fim_sep: id("fim_sep_token_id"),
            add_bos: flag("add_bos_token"),
            add_eos: flag("add_eos_token"),
            add_sep: flag("add_sep_token"),
            add_space_prefix: flag("add_space_prefix"),
            remove_extra_whitespaces: flag("remove_extra_whitespaces"),
            precompiled_charsmap: self
                .number_lists
                .get(&ggml("precompiled_charsmap"))
                .cloned()
                .map(Cow::from)
                .unwrap_or_default(),
            lowercase: flag("normalizer.lowercase"),
            strip_accents: flag("normalizer.strip_accents"),
            name: self.strings.get("general.name").cloned().map(Cow::from),
            architecture: self.strings.get("general.architecture").cloned().map(Cow::from),
            tokens: self.string_lists.remove(&ggml("tokens")).unwrap().into(),
            merges: self.string_lists.remove(&ggml("merges")).unwrap_or_default().into(),
        }
    }
}
