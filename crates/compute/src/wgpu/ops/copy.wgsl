// dst[dst_offset + r * dst_cols + c] = src[src_offset + r * src_stride + c], 0 where c >= cols.

@group(0) @binding(1) var<storage, read> src: array<f32>;
@group(0) @binding(2) var<storage, read_write> dst: array<f32>;

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let i = group_index(group, groups) * WG + lid;
    if i >= p.rows * p.dst_cols {
        return;
    }
    let r = i / p.dst_cols;
    let c = i % p.dst_cols;
    var value = 0.0;
    if c < p.cols {
        value = src[p.src_offset + r * p.src_stride + c];
    }
    dst[p.dst_offset + i] = value;
}
