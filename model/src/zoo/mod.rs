//! The models: each turns a shape into blocks. Names follow PyTorch, so an export loads there.

pub(crate) mod cnn;
pub(crate) mod convolution;
pub(crate) mod efficientnet_b1;
pub(crate) mod gpt;
pub(crate) mod mlp;
pub(crate) mod mobilenet_v2;
pub(crate) mod resnet_50;
