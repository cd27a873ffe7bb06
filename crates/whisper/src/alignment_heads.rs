//! Alignment heads: heads of the decoder's cross-attention that follow speech.

use stonechat_formats::ModelFile;

use crate::config::Config;
use crate::error::Error;

/// Layer and head.
type Head = (usize, usize);

/// Alignment heads, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AlignmentHeads(Vec<Head>);

/// Alignment heads of OpenAI's models, by `[n_text_layers, n_text_heads, vocab_size]` (openai/whisper
/// `__init__.py`). large-v1 has the sizes of large-v2 and gets its heads.
#[rustfmt::skip]
const KNOWN: [([usize; 3], &[Head]); 11] = [
    // tiny.en, tiny
    ([4, 6, 51864], &[(1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4)]),
    ([4, 6, 51865], &[(2, 2), (3, 0), (3, 2), (3, 3), (3, 4), (3, 5)]),
    // base.en, base
    ([6, 8, 51864], &[(3, 3), (4, 7), (5, 1), (5, 5), (5, 7)]),
    ([6, 8, 51865], &[(3, 1), (4, 2), (4, 3), (4, 7), (5, 1), (5, 2), (5, 4), (5, 6)]),
    // small.en, small
    ([12, 12, 51864], &[
        (6, 6), (7, 0), (7, 3), (7, 8), (8, 2), (8, 5), (8, 7), (9, 0), (9, 4), (9, 8), (9, 10),
        (10, 0), (10, 1), (10, 2), (10, 3), (10, 6), (10, 11), (11, 2), (11, 4),
    ]),
    ([12, 12, 51865], &[
        (5, 3), (5, 9), (8, 0), (8, 4), (8, 7), (8, 8), (9, 0), (9, 7), (9, 9), (10, 5),
    ]),
    // medium.en, medium
    ([24, 16, 51864], &[
        (11, 4), (14, 1), (14, 12), (14, 14), (15, 4), (16, 0), (16, 4), (16, 9), (17, 12),
        (17, 14), (18, 7), (18, 10), (18, 15), (20, 0), (20, 3), (20, 9), (20, 14), (21, 12),
    ]),
    ([24, 16, 51865], &[(13, 15), (15, 4), (15, 15), (16, 1), (20, 0), (23, 4)]),
    // large-v2, large-v3, large-v3-turbo
    ([32, 20, 51865], &[
        (10, 12), (13, 17), (16, 11), (16, 12), (16, 13), (17, 15), (17, 16), (18, 4), (18, 11),
        (18, 19), (19, 11), (21, 2), (21, 3), (22, 3), (22, 9), (22, 12), (23, 5), (23, 7),
        (23, 13), (25, 5), (26, 1), (26, 12), (27, 15),
    ]),
    ([32, 20, 51866], &[
        (7, 0), (10, 17), (12, 18), (13, 12), (16, 1), (17, 14), (19, 11), (21, 4), (24, 1),
        (25, 6),
    ]),
    ([4, 20, 51866], &[(2, 4), (2, 11), (3, 3), (3, 6), (3, 11), (3, 14)]),
];

impl AlignmentHeads {
    /// Reads `alignment_heads` of `config.json` or `generation_config.json`; without it, the heads of
    /// OpenAI's model of this size; else all heads of the upper half of the layers (openai/whisper's
    /// default).
    ///
    /// # Errors
    /// If a file lists heads that the model does not have.
    pub(crate) fn read(file: &ModelFile, config: &Config) -> Result<Self, Error> {
        for name in ["config.json", "generation_config.json"] {
            if let Some(json) = file.companion(name)
                && let Some(heads) = Self::from_json(json, config)?
            {
                return Ok(heads);
            }
        }
        Ok(Self::of_size(config))
    }

    /// Parses `alignment_heads`, a list of `[layer, head]`; `None` if there is no such entry.
    fn from_json(json: &[u8], config: &Config) -> Result<Option<Self>, Error> {
        // Required files were parsed before: invalid JSON here is treated as a file without heads.
        let json: serde_json::Value = serde_json::from_slice(json).unwrap_or_default();
        let listed = &json["alignment_heads"];
        if listed.is_null() {
            return Ok(None);
        }
        let wrong = || Error::Config {
            key: "alignment_heads",
            problem: format!(
                "must list pairs below [{}, {}]",
                config.n_text_layers, config.n_text_heads
            ),
        };
        let heads: Vec<Head> = serde_json::from_value(listed.clone()).map_err(|_| wrong())?;
        let exists =
            |&(layer, head): &Head| layer < config.n_text_layers && head < config.n_text_heads;
        if heads.is_empty() || !heads.iter().all(exists) {
            return Err(wrong());
        }
        Ok(Some(Self(heads)))
    }

    fn of_size(config: &Config) -> Self {
        let size = [config.n_text_layers, config.n_text_heads, config.vocab_size];
        if let Some((_, heads)) = KNOWN.iter().find(|(known, _)| *known == size) {
            return Self(heads.to_vec());
        }
        let upper = config.n_text_layers / 2..config.n_text_layers;
        let heads = upper.flat_map(|layer| (0..config.n_text_heads).map(move |head| (layer, head)));
        Self(heads.collect())
    }

    /// Number of heads.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Heads of `layer`, each with its index in the list.
    pub(crate) fn of_layer(&self, layer: usize) -> impl Iterator<Item = (usize, usize)> {
        let numbered = self.0.iter().enumerate();
        numbered.filter(move |(_, head)| head.0 == layer).map(|(i, head)| (i, head.1))
    }
}

#[cfg(test)]
mod tests {
    use super::{AlignmentHeads, KNOWN};
    use crate::config::Config;

    fn config(n_text_layers: usize, n_text_heads: usize, vocab_size: usize) -> Config {
        Config {
            n_mels: 80,
            n_audio_ctx: 1500,
            d_model: 64 * n_text_heads,
            n_audio_heads: n_text_heads,
            n_audio_layers: n_text_layers,
            n_text_ctx: 448,
            n_text_heads,
            n_text_layers,
            vocab_size,
        }
    }

    #[test]
    fn known_heads_exist_and_are_sorted() {
        for ([layers, heads, vocab_size], known) in KNOWN {
            assert!(known.is_sorted() && known.iter().all(|&(l, h)| l < layers && h < heads));
            let found = AlignmentHeads::of_size(&config(layers, heads, vocab_size));
            assert_eq!(found.0, known);
        }
    }

    #[test]
    fn other_sizes_take_the_upper_half_of_the_layers() {
        let heads = AlignmentHeads::of_size(&config(2, 2, 51865));
        assert_eq!(heads.0, [(1, 0), (1, 1)]);
        assert_eq!(heads.of_layer(1).collect::<Vec<_>>(), [(0, 0), (1, 1)]);
        assert_eq!(heads.of_layer(0).count(), 0);
    }

    #[test]
    fn files_may_list_heads() {
        let config = config(4, 6, 51865);
        let read = |json: &str| AlignmentHeads::from_json(json.as_bytes(), &config);
        let heads = read(r#"{"alignment_heads": [[3, 5], [1, 0]]}"#).unwrap().unwrap();
        assert_eq!(heads.0, [(3, 5), (1, 0)]);
        for json in ["{}", r#"{"alignment_heads": null}"#, "no JSON"] {
            assert_eq!(read(json).unwrap(), None);
        }
        for listed in ["[]", "[[4, 0]]", "[[0, 6]]", "[[1]]", "[[-1, 0]]", "7"] {
            let error = read(&format!(r#"{{"alignment_heads": {listed}}}"#)).unwrap_err();
            assert!(error.to_string().contains("must list pairs below [4, 6]"), "{error}");
        }
    }
}
