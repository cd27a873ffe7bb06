// dst[i] = src[row i]; rows of `cols` values.

@group(0) @binding(1) var<storage, read> data: array<u32>;
@group(0) @binding(2) var<storage, read> src: array<f32>;
@group(0) @binding(3) var<storage, read_write> dst: array<f32>;

fn kernel_main(group: vec3<u32>, groups: vec3<u32>, lid: u32) {
    let i = group_index(group, groups) * WG + lid;
    if i < p.rows * p.cols {
        let row = data[p.list + i / p.cols];
        dst[i] = src[p.src_offset + row * p.src_stride + i % p.cols];
    }
}
