//! Names of the samplers and the default order of the chain.

use std::str::FromStr;

use crate::Error;

/// A sampler of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SamplerKind {
    /// Repetition, frequency and presence penalties.
    Penalties,
    /// DRY: penalty for extending repeated sequences.
    Dry,
    /// Top-nσ: logits within `n` standard deviations of the maximum.
    TopNSigma,
    /// Top-k.
    TopK,
    /// Tail-free sampling.
    TailFree,
    /// Locally typical sampling.
    TypicalP,
    /// Top-p (nucleus).
    TopP,
    /// Min-p: a threshold relative to the most probable token.
    MinP,
    /// Epsilon sampling: a fixed threshold of the probability.
    EpsilonCutoff,
    /// Eta sampling: a threshold that depends on the entropy.
    EtaCutoff,
    /// XTC: exclude top choices.
    Xtc,
    /// Temperature, fixed or dynamic.
    Temperature,
    /// Adaptive-p, which replaces the plain draw at the end of the chain.
    AdaptiveP,
}

/// Kind, name, letter, aliases. Names and letters are llama.cpp's, but for the samplers that it lacks: `tfs_z`,
/// `epsilon_cutoff` and `eta_cutoff`.
const NAMES: [(SamplerKind, &str, char, &[&str]); 13] = [
    (SamplerKind::Penalties, "penalties", 'e', &[]),
    (SamplerKind::Dry, "dry", 'd', &[]),
    (SamplerKind::TopNSigma, "top_n_sigma", 's', &[]),
    (SamplerKind::TopK, "top_k", 'k', &[]),
    (SamplerKind::TailFree, "tfs_z", 'f', &["tfs", "tail_free"]),
    (SamplerKind::TypicalP, "typ_p", 'y', &["typ", "typical", "typical_p"]),
    (SamplerKind::TopP, "top_p", 'p', &["nucleus"]),
    (SamplerKind::MinP, "min_p", 'm', &[]),
    (SamplerKind::EpsilonCutoff, "epsilon_cutoff", 'c', &["epsilon"]),
    (SamplerKind::EtaCutoff, "eta_cutoff", 'h', &["eta"]),
    (SamplerKind::Xtc, "xtc", 'x', &[]),
    (SamplerKind::Temperature, "temperature", 't', &["temp"]),
    (SamplerKind::AdaptiveP, "adaptive_p", 'a', &[]),
];

impl SamplerKind {
    /// llama.cpp's order, with three further samplers, which are off by default.
    pub const DEFAULT_ORDER: &[Self] = &[
        Self::Penalties,
        Self::Dry,
        Self::TopNSigma,
        Self::TopK,
        Self::TailFree,
        Self::TypicalP,
        Self::TopP,
        Self::MinP,
        Self::EpsilonCutoff,
        Self::EtaCutoff,
        Self::Xtc,
        Self::Temperature,
    ];

    /// Name in `--samplers`.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|entry| entry.0 == self).map_or("", |entry| entry.1)
    }

    /// Parses names separated by semicolons, as in `--samplers "top_k;top_p;temperature"`.
    ///
    /// # Errors
    /// [`Error::UnknownSampler`] for the first unknown name.
    pub fn parse_names(names: &str) -> Result<Vec<Self>, Error> {
        names.split(';').map(str::trim).filter(|name| !name.is_empty()).map(str::parse).collect()
    }

    /// Parses one letter per sampler, as in `--sampler-seq edskypmxt`.
    ///
    /// # Errors
    /// [`Error::UnknownSampler`] for the first unknown letter.
    pub fn parse_letters(letters: &str) -> Result<Vec<Self>, Error> {
        let parse = |letter: char| {
            let entry = NAMES.iter().find(|entry| entry.2 == letter);
            entry.map(|entry| entry.0).ok_or_else(|| unknown(&letter.to_string()))
        };
        letters.chars().map(parse).collect()
    }
}

impl FromStr for SamplerKind {
    type Err = Error;

    /// Parses one name of `--samplers`: `top_k`, `top-k`, `topk`, case-insensitive, and llama.cpp's aliases.
    fn from_str(name: &str) -> Result<Self, Error> {
        let bare = |name: &str| name.to_lowercase().replace(['_', '-'], "");
        let searched = bare(name);
        let matches = |entry: &&(Self, &str, char, &[&str])| {
            bare(entry.1) == searched || entry.3.iter().any(|alias| bare(alias) == searched)
        };
        NAMES.iter().find(matches).map(|entry| entry.0).ok_or_else(|| unknown(name))
    }
}

fn unknown(name: &str) -> Error {
    let known = NAMES.map(|(_, name, letter, _)| format!("{name} ({letter})")).join(", ");
    Error::UnknownSampler { name: name.to_owned(), known }
}

#[cfg(test)]
mod tests {
    use super::SamplerKind;

    #[test]
    fn names_letters_and_aliases_are_parsed() {
        let order = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature";
        let names = SamplerKind::parse_names(order).unwrap();
        assert_eq!(names, SamplerKind::parse_letters("edskypmxt").unwrap());
        for name in ["Top-K", "topk", "top_k"] {
            assert_eq!(name.parse::<SamplerKind>().unwrap(), SamplerKind::TopK);
        }
        assert_eq!("nucleus".parse::<SamplerKind>().unwrap(), SamplerKind::TopP);
        for &kind in SamplerKind::DEFAULT_ORDER {
            assert_eq!(kind.name().parse::<SamplerKind>().unwrap(), kind);
        }
    }

    #[test]
    fn unknown_names_are_errors() {
        let error = SamplerKind::parse_names("top_k;warmth").unwrap_err().to_string();
        assert!(
            error.starts_with("unknown sampler `warmth`: expected one of penalties (e), dry (d)")
        );
        let error = SamplerKind::parse_letters("kz").unwrap_err().to_string();
        assert!(error.starts_with("unknown sampler `z`"), "{error}");
    }
}
