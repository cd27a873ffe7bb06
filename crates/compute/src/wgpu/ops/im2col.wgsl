// dst[t, tap * cols + i] = src[t * step + tap - 1, i], 0 outside of the frames.

@group(0) @binding(1) var<storage, read> src: array<f32>;
@group(0) @binding(2) var<storage, read_write> dst: array<f32>;

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let i = group_index(group, groups) * WG + lid;
    if i >= p.rows * p.dst_cols {
        return;
    }
    let t = i / p.dst_cols;
    let c = i % p.dst_cols;
    let tap = c / p.cols;
    // Index of the frame + 1, so that the padding frame before the first has 0.
    let next = t * p.step + tap;
    var value = 0.0;
    if tap < 3u && next >= 1u && next <= p.frames {
        value = src[p.src_offset + (next - 1u) * p.src_stride + c % p.cols];
    }
    dst[i] = value;
}
