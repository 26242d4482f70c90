module attributes {hacc.target = #hacc.target<"Ascend910B3">, hivm.module_core_type = #hivm.module_core_type<AIV>, memref.memref_as_ptr} {
func.func @kernel(
    %ffts: i64 {hacc.arg_type = #hacc.arg_type<ffts_base_address>},
    %lock: memref<?xi8, #hivm.address_space<gm>>,
    %workspace: memref<?xi8, #hivm.address_space<gm>>,
    %tensor_x: memref<?xf32, #hivm.address_space<gm>>,
    %tensor_index: memref<?xi32, #hivm.address_space<gm>>,
    %tensor_y: memref<?xf32, #hivm.address_space<gm>>,
    %symbol0_k: i32,
    %grid_x: i32,
    %grid_y: i32,
    %grid_z: i32,
    %program_x: i32,
    %program_y: i32,
    %program_z: i32
) attributes {SyncBlockLockArgIdx = 0 : i64, WorkspaceArgIdx = 1 : i64, hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>, mix_mode = "aiv"} {
  hivm.hir.set_ffts_base_addr %ffts
  %c0 = arith.constant 1 : index
  %c1 = arith.constant 0 : index
  %c2 = arith.constant 8 : index
  %c3 = arith.constant 64 : index
  %c4 = arith.constant 0.00000000000000000e+00 : f32
  %k_index1 = arith.index_cast %symbol0_k : i32 to index
  %v2 = hivm.hir.get_block_idx -> i64
  %v3 = hivm.hir.get_block_num -> i64
  %v4 = arith.index_cast %v2 : i64 to index
  %v5 = arith.index_cast %v3 : i64 to index
  scf.for %turn6 = %v4 to %c0 step %v5 {
    %ub7 = memref.alloc() : memref<8xi32, #hivm.address_space<ub>>
    %ub8 = memref.alloc() : memref<512xf32, #hivm.address_space<ub>>
    %gm9 = memref.reinterpret_cast %tensor_index to offset: [%c1], sizes: [8], strides: [1] : memref<?xi32, #hivm.address_space<gm>> to memref<8xi32, strided<[1], offset: ?>, #hivm.address_space<gm>>
    %ub10 = memref.reinterpret_cast %ub7 to offset: [0], sizes: [8], strides: [1] : memref<8xi32, #hivm.address_space<ub>> to memref<8xi32, strided<[1]>, #hivm.address_space<ub>>
    hivm.hir.load ins(%gm9 : memref<8xi32, strided<[1], offset: ?>, #hivm.address_space<gm>>) outs(%ub10 : memref<8xi32, strided<[1]>, #hivm.address_space<ub>>)
    scf.for %i11 = %c1 to %c2 step %c0 {
      %v12 = memref.load %ub7[%i11] : memref<8xi32, #hivm.address_space<ub>>
      %v13 = arith.index_cast %v12 : i32 to index
      %v14 = arith.cmpi sge, %v13, %c1 : index
      scf.if %v14 {
        %v15 = arith.muli %i11, %c3 : index
        %v16 = memref.load %ub7[%i11] : memref<8xi32, #hivm.address_space<ub>>
        %v17 = arith.index_cast %v16 : i32 to index
        %v18 = arith.cmpi sge, %v17, %c1 : index
        %v19 = arith.cmpi slt, %v17, %k_index1 : index
        %v20 = arith.andi %v18, %v19 : i1
        %v21 = arith.muli %v17, %c3 : index
        %v22 = memref.reinterpret_cast %ub8 to offset: [%v15], sizes: [64], strides: [1] : memref<512xf32, #hivm.address_space<ub>> to memref<64xf32, strided<[1], offset: ?>, #hivm.address_space<ub>>
        hivm.hir.vbrc ins(%c4 : f32) outs(%v22 : memref<64xf32, strided<[1], offset: ?>, #hivm.address_space<ub>>)
        scf.if %v20 {
          %gm23 = memref.reinterpret_cast %tensor_x to offset: [%v21], sizes: [64], strides: [1] : memref<?xf32, #hivm.address_space<gm>> to memref<64xf32, strided<[1], offset: ?>, #hivm.address_space<gm>>
          %ub24 = memref.reinterpret_cast %ub8 to offset: [%v15], sizes: [64], strides: [1] : memref<512xf32, #hivm.address_space<ub>> to memref<64xf32, strided<[1], offset: ?>, #hivm.address_space<ub>>
          hivm.hir.load ins(%gm23 : memref<64xf32, strided<[1], offset: ?>, #hivm.address_space<gm>>) outs(%ub24 : memref<64xf32, strided<[1], offset: ?>, #hivm.address_space<ub>>)
        }
      } else {
        %v25 = arith.muli %i11, %c3 : index
        %v26 = memref.reinterpret_cast %ub8 to offset: [%v25], sizes: [64], strides: [1] : memref<512xf32, #hivm.address_space<ub>> to memref<64xf32, strided<[1], offset: ?>, #hivm.address_space<ub>>
        hivm.hir.vbrc ins(%c4 : f32) outs(%v26 : memref<64xf32, strided<[1], offset: ?>, #hivm.address_space<ub>>)
      }
    }
    %gm27 = memref.reinterpret_cast %tensor_y to offset: [%c1], sizes: [512], strides: [1] : memref<?xf32, #hivm.address_space<gm>> to memref<512xf32, strided<[1], offset: ?>, #hivm.address_space<gm>>
    %ub28 = memref.reinterpret_cast %ub8 to offset: [0], sizes: [512], strides: [1] : memref<512xf32, #hivm.address_space<ub>> to memref<512xf32, strided<[1]>, #hivm.address_space<ub>>
    hivm.hir.store ins(%ub28 : memref<512xf32, strided<[1]>, #hivm.address_space<ub>>) outs(%gm27 : memref<512xf32, strided<[1], offset: ?>, #hivm.address_space<gm>>)
  }
  return
}
}
