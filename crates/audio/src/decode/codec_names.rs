//! Names of codecs that are not decoded here.

use symphonia::core::codecs::audio::well_known as id;
use symphonia::core::codecs::audio::{AudioCodecId, CODEC_ID_NULL_AUDIO};

/// The name of a codec in plain words.
pub(super) fn codec_name(codec: AudioCodecId) -> String {
    let name = match codec {
        id::CODEC_ID_AC3 => "AC-3",
        id::CODEC_ID_EAC3 => "E-AC-3",
        id::CODEC_ID_AC4 => "AC-4",
        id::CODEC_ID_DCA => "DTS",
        id::CODEC_ID_TRUEHD => "TrueHD",
        id::CODEC_ID_WMA => "Windows Media Audio",
        id::CODEC_ID_SPEEX => "Speex",
        id::CODEC_ID_MUSEPACK => "Musepack",
        id::CODEC_ID_WAVPACK => "WavPack",
        id::CODEC_ID_MONKEYS_AUDIO => "Monkey's Audio",
        id::CODEC_ID_TTA => "True Audio (TTA)",
        id::CODEC_ID_ATRAC1 | id::CODEC_ID_ATRAC3 | id::CODEC_ID_ATRAC3PLUS => "ATRAC",
        id::CODEC_ID_ATRAC9 => "ATRAC9",
        id::CODEC_ID_RA10 | id::CODEC_ID_RA20 | id::CODEC_ID_RALF => "RealAudio",
        id::CODEC_ID_SIPR | id::CODEC_ID_COOK => "RealAudio",
        id::CODEC_ID_ADPCM_G722 => "G.722",
        id::CODEC_ID_ADPCM_G726 | id::CODEC_ID_ADPCM_G726LE => "G.726",
        id::CODEC_ID_SBC => "SBC",
        id::CODEC_ID_APTX | id::CODEC_ID_APTX_HD => "aptX",
        id::CODEC_ID_LDAC => "LDAC",
        CODEC_ID_NULL_AUDIO => "unknown codec",
        _ => return decoded_name(codec),
    };
    name.to_owned()
}

/// The short name of a codec that has a decoder.
fn decoded_name(codec: AudioCodecId) -> String {
    if codec == id::CODEC_ID_OPUS {
        return "opus".to_owned();
    }
    let found = symphonia::default::get_codecs().get_audio_decoder(codec);
    found.map_or_else(|| "unknown codec".to_owned(), |one| one.codec.info.short_name.to_owned())
}

/// The name of an MP4 codec by the four characters of its sample entry.
pub(super) fn sample_entry_name(entry: [u8; 4]) -> String {
    let name = match &entry {
        b"ac-3" => "AC-3",
        b"ec-3" => "E-AC-3",
        b"ac-4" => "AC-4",
        b"dtsc" | b"dtsh" | b"dtsl" | b"dtse" | b"dtsx" => "DTS",
        b"mlpa" => "TrueHD",
        b"samr" => "AMR",
        b"sawb" | b"sawp" => "AMR-WB",
        b"sevc" => "EVRC",
        b"sqcp" | b"Qclp" => "QCELP",
        b"spex" => "Speex",
        b"QDM2" | b"QDMC" => "QDesign Music",
        b"MAC3" | b"MAC6" => "MACE",
        b"mhm1" | b"mha1" => "MPEG-H",
        b"enca" => "encrypted audio",
        _ => {
            let text: String = entry.iter().map(|&byte| char::from(byte)).collect();
            return format!("`{}`", text.escape_default());
        }
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codecs_have_names() {
        assert_eq!(codec_name(id::CODEC_ID_AC3), "AC-3");
        assert_eq!(codec_name(id::CODEC_ID_FLAC), "flac");
        assert_eq!(codec_name(id::CODEC_ID_OPUS), "opus");
        assert_eq!(
            codec_name(AudioCodecId::new(symphonia::core::common::FourCc::new(*b"none"))),
            "unknown codec"
        );
        assert_eq!(sample_entry_name(*b"ec-3"), "E-AC-3");
        assert_eq!(sample_entry_name(*b"x\n\xFFy"), "`x\\n\\u{ff}y`");
    }
}
