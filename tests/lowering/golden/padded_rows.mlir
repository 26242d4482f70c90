module attributes {hacc.target = #hacc.target<"Ascend910B3">, hivm.module_core_type = #hivm.module_core_type<AIV>, memref.memref_as_ptr} {
func.func @kernel(
    %ffts: i64 {hacc.arg_type = #hacc.arg_type<ffts_base_address>},
    %lock: memref<?xi8, #hivm.address_space<gm>>,
    %workspace: memref<?xi8, #hivm.address_space<gm>>,
    %tensor_x: memref<?xf32, #hivm.address_space<gm>>,
    %tensor_s: memref<?xf32, #hivm.address_space<gm>>,
    %tensor_y: memref<?xf32, #hivm.address_space<gm>>,
    %grid_x: i32,
    %grid_y: i32,
    %grid_z: i32,
    %program_x: i32,
    %program_y: i32,
    %program_z: i32
) attributes {SyncBlockLockArgIdx = 0 : i64, WorkspaceArgIdx = 1 : i64, hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>, mix_mode = "aiv"} {
  hivm.hir.set_ffts_base_addr %ffts
  %c0 = arith.constant 1 : index
  %c1 = arith.constant 0.00000000000000000e+00 : f32
  %c2 = arith.constant 0 : index
  %v1 = hivm.hir.get_block_idx -> i64
  %v2 = hivm.hir.get_block_num -> i64
  %v3 = arith.index_cast %v1 : i64 to index
  %v4 = arith.index_cast %v2 : i64 to index
  scf.for %turn5 = %v3 to %c0 step %v4 {
    %ub6 = memref.alloc() : memref<64xf32, #hivm.address_space<ub>>
    hivm.hir.vbrc ins(%c1 : f32) outs(%ub6 : memref<64xf32, #hivm.address_space<ub>>)
    %ub7 = memref.alloc() : memref<8xf32, #hivm.address_space<ub>>
    %gm8 = memref.reinterpret_cast %tensor_x to offset: [%c2], sizes: [8, 5], strides: [5, 1] : memref<?xf32, #hivm.address_space<gm>> to memref<8x5xf32, strided<[5, 1], offset: ?>, #hivm.address_space<gm>>
    %ub9 = memref.reinterpret_cast %ub6 to offset: [0], sizes: [8, 5], strides: [8, 1] : memref<64xf32, #hivm.address_space<ub>> to memref<8x5xf32, strided<[8, 1]>, #hivm.address_space<ub>>
    hivm.hir.load ins(%gm8 : memref<8x5xf32, strided<[5, 1], offset: ?>, #hivm.address_space<gm>>) outs(%ub9 : memref<8x5xf32, strided<[8, 1]>, #hivm.address_space<ub>>)
    %gm10 = memref.reinterpret_cast %tensor_s to offset: [%c2], sizes: [8], strides: [1] : memref<?xf32, #hivm.address_space<gm>> to memref<8xf32, strided<[1], offset: ?>, #hivm.address_space<gm>>
    %ub11 = memref.reinterpret_cast %ub7 to offset: [0], sizes: [8], strides: [1] : memref<8xf32, #hivm.address_space<ub>> to memref<8xf32, strided<[1]>, #hivm.address_space<ub>>
    hivm.hir.load ins(%gm10 : memref<8xf32, strided<[1], offset: ?>, #hivm.address_space<gm>>) outs(%ub11 : memref<8xf32, strided<[1]>, #hivm.address_space<ub>>)
    %ub12 = memref.alloc() : memref<64xf32, #hivm.address_space<ub>>
    hivm.hir.vbrc ins(%c1 : f32) outs(%ub12 : memref<64xf32, #hivm.address_space<ub>>)
    %v13 = memref.reinterpret_cast %ub7 to offset: [0], sizes: [8, 1], strides: [1, 1] : memref<8xf32, #hivm.address_space<ub>> to memref<8x1xf32, strided<[1, 1]>, #hivm.address_space<ub>>
    %v14 = memref.reinterpret_cast %ub12 to offset: [0], sizes: [8, 5], strides: [8, 1] : memref<64xf32, #hivm.address_space<ub>> to memref<8x5xf32, strided<[8, 1]>, #hivm.address_space<ub>>
    hivm.hir.vbrc ins(%v13 : memref<8x1xf32, strided<[1, 1]>, #hivm.address_space<ub>>) outs(%v14 : memref<8x5xf32, strided<[8, 1]>, #hivm.address_space<ub>>) broadcast_dims = [1]
    hivm.hir.vmul ins(%ub6, %ub12 : memref<64xf32, #hivm.address_space<ub>>, memref<64xf32, #hivm.address_space<ub>>) outs(%ub6 : memref<64xf32, #hivm.address_space<ub>>)
    %gm15 = memref.reinterpret_cast %tensor_y to offset: [%c2], sizes: [8, 5], strides: [5, 1] : memref<?xf32, #hivm.address_space<gm>> to memref<8x5xf32, strided<[5, 1], offset: ?>, #hivm.address_space<gm>>
    %ub16 = memref.reinterpret_cast %ub6 to offset: [0], sizes: [8, 5], strides: [8, 1] : memref<64xf32, #hivm.address_space<ub>> to memref<8x5xf32, strided<[8, 1]>, #hivm.address_space<ub>>
    hivm.hir.store ins(%ub16 : memref<8x5xf32, strided<[8, 1]>, #hivm.address_space<ub>>) outs(%gm15 : memref<8x5xf32, strided<[5, 1], offset: ?>, #hivm.address_space<gm>>)
  }
  return
}
}
