//! `gpt`: a decoder-only transformer with GPT-2's layout (Radford et al. 2019, "Language Models are Unsupervised Multitask
//! Learners", section 2.3) and the names of Hugging Face's `GPT2LMHeadModel`, from `transformer.wte.weight` to
//! `lm_head.weight`.
//!
//! Deviations: initial weights are uniform with the same variance where GPT-2's are normal (standard deviation 0.02, of
//! what is added to the residual stream divided by the root of twice the layers), and the attention's weights are not
//! dropped.

use crate::block::Builder;
use crate::layer::Layer;

const DEVIATION: f64 = 0.02;

/// The settings of `ModelConfig::Gpt`.
pub(crate) struct Gpt {
    pub(crate) layers: i64,
    pub(crate) heads: i64,
    pub(crate) width: i64,
    pub(crate) context: i64,
    pub(crate) vocabulary: i64,
    pub(crate) dropout: f32,
    pub(crate) tied: bool,
}

/// The bound of a uniform distribution with this standard deviation.
fn uniform(deviation: f64) -> f64 {
    3f64.sqrt() * deviation
}

/// Declares the model: one block for the embeddings, one per transformer layer, one for the head.
pub(crate) fn build(builder: &mut Builder, gpt: &Gpt) {
    let bound = uniform(DEVIATION);
    let drop = (gpt.dropout > 0.0).then_some(Layer::Dropout { p: gpt.dropout });
    let mut embeddings = 0;
    builder.block("transformer.wte", |builder| {
        let tokens = [gpt.vocabulary, gpt.width];
        embeddings = builder.matrix("transformer.wte", tokens, bound);
        let positions = builder.matrix("transformer.wpe", [gpt.context, gpt.width], bound);
        let embedding = Layer::Embedding {
            tokens: embeddings,
            positions,
        };
        [embedding].into_iter().chain(drop.clone()).collect() // [B, T, C]
    });
    for number in 0..gpt.layers {
        let name = format!("transformer.h.{number}");
        builder.block(name.clone(), |builder| {
            transformer(builder, &name, gpt, &drop)
        });
    }
    builder.block("lm_head", |builder| {
        let norm = builder.layer_norm("transformer.ln_f", gpt.width);
        let weight = if gpt.tied {
            builder.share(embeddings)
        } else {
            builder.matrix("lm_head", [gpt.vocabulary, gpt.width], bound)
        };
        vec![norm, Layer::Linear { weight, bias: None }] // [B, T, V]
    });
}

/// Attention and two linear layers, each on normalised input and added to it.
fn transformer(builder: &mut Builder, name: &str, gpt: &Gpt, drop: &Option<Layer>) -> Vec<Layer> {
    let width = gpt.width;
    let bound = uniform(DEVIATION);
    let narrow = uniform(DEVIATION / (2.0 * gpt.layers as f64).sqrt());
    let mut attention = vec![
        builder.layer_norm(&format!("{name}.ln_1"), width),
        builder.projection(&format!("{name}.attn.c_attn"), [width, 3 * width], bound),
        Layer::Attention { heads: gpt.heads },
        builder.projection(&format!("{name}.attn.c_proj"), [width, width], narrow),
    ];
    attention.extend(drop.clone());
    let mut mlp = vec![
        builder.layer_norm(&format!("{name}.ln_2"), width),
        builder.projection(&format!("{name}.mlp.c_fc"), [width, 4 * width], bound),
        Layer::Gelu,
        builder.projection(&format!("{name}.mlp.c_proj"), [4 * width, width], narrow),
    ];
    mlp.extend(drop.clone());
    vec![Layer::residual(attention), Layer::residual(mlp)]
}
