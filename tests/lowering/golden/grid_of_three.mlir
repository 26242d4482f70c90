module attributes {hacc.target = #hacc.target<"Ascend910B3">, hivm.module_core_type = #hivm.module_core_type<AIV>, memref.memref_as_ptr} {
func.func @kernel(
    %ffts: i64 {hacc.arg_type = #hacc.arg_type<ffts_base_address>},
    %lock: memref<?xi8, #hivm.address_space<gm>>,
    %workspace: memref<?xi8, #hivm.address_space<gm>>,
    %tensor_x: memref<?xi32, #hivm.address_space<gm>>,
    %tensor_y: memref<?xi32, #hivm.address_space<gm>>,
    %symbol0_n: i32,
    %symbol1_m: i32,
    %grid_x: i32,
    %grid_y: i32,
    %grid_z: i32,
    %program_x: i32,
    %program_y: i32,
    %program_z: i32
) attributes {SyncBlockLockArgIdx = 0 : i64, WorkspaceArgIdx = 1 : i64, hacc.entry, hacc.function_kind = #hacc.function_kind<DEVICE>, hivm.func_core_type = #hivm.func_core_type<AIV>, mix_mode = "aiv"} {
  hivm.hir.set_ffts_base_addr %ffts
  %c0 = arith.constant 63 : index
  %c1 = arith.constant 64 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 0 : index
  %c4 = arith.constant 1 : index
  %c5 = arith.constant 0 : i32
  %n_index1 = arith.index_cast %symbol0_n : i32 to index
  %m_index2 = arith.index_cast %symbol1_m : i32 to index
  %v3 = arith.addi %m_index2, %c0 : index
  %v4 = arith.floordivsi %v3, %c1 : index
  %v5 = arith.muli %v4, %c2 : index
  %v6 = arith.muli %v5, %n_index1 : index
  %v7 = hivm.hir.get_block_idx -> i64
  %v8 = hivm.hir.get_block_num -> i64
  %v9 = arith.index_cast %v7 : i64 to index
  %v10 = arith.index_cast %v8 : i64 to index
  scf.for %turn11 = %v9 to %v6 step %v10 {
    %v12 = arith.remsi %turn11, %v4 : index
    %v13 = arith.divsi %turn11, %v4 : index
    %v14 = arith.remsi %v13, %c2 : index
    %v15 = arith.divsi %v13, %c2 : index
    %ub16 = memref.alloc() : memref<64xi32, #hivm.address_space<ub>>
    %v17 = arith.muli %v12, %c1 : index
    %v18 = arith.subi %m_index2, %v17 : index
    %v19 = arith.minsi %v18, %c1 : index
    %v20 = arith.cmpi slt, %v18, %c1 : index
    %v21 = arith.muli %m_index2, %c2 : index
    %v22 = arith.muli %v15, %v21 : index
    %v23 = arith.muli %v14, %m_index2 : index
    %v24 = arith.addi %v22, %v23 : index
    %v25 = arith.muli %v17, %c4 : index
    %v26 = arith.addi %v24, %v25 : index
    scf.if %v20 {
      hivm.hir.vbrc ins(%c5 : i32) outs(%ub16 : memref<64xi32, #hivm.address_space<ub>>)
      %gm27 = memref.reinterpret_cast %tensor_x to offset: [%v26], sizes: [%v19], strides: [1] : memref<?xi32, #hivm.address_space<gm>> to memref<?xi32, strided<[1], offset: ?>, #hivm.address_space<gm>>
      %ub28 = memref.reinterpret_cast %ub16 to offset: [0], sizes: [%v19], strides: [1] : memref<64xi32, #hivm.address_space<ub>> to memref<?xi32, strided<[1]>, #hivm.address_space<ub>>
      hivm.hir.load ins(%gm27 : memref<?xi32, strided<[1], offset: ?>, #hivm.address_space<gm>>) outs(%ub28 : memref<?xi32, strided<[1]>, #hivm.address_space<ub>>)
    } else {
      %gm29 = memref.reinterpret_cast %tensor_x to offset: [%v26], sizes: [64], strides: [1] : memref<?xi32, #hivm.address_space<gm>> to memref<64xi32, strided<[1], offset: ?>, #hivm.address_space<gm>>
      %ub30 = memref.reinterpret_cast %ub16 to offset: [0], sizes: [64], strides: [1] : memref<64xi32, #hivm.address_space<ub>> to memref<64xi32, strided<[1]>, #hivm.address_space<ub>>
      hivm.hir.load ins(%gm29 : memref<64xi32, strided<[1], offset: ?>, #hivm.address_space<gm>>) outs(%ub30 : memref<64xi32, strided<[1]>, #hivm.address_space<ub>>)
    }
    %v31 = arith.muli %v12, %c1 : index
    %v32 = arith.subi %m_index2, %v31 : index
    %v33 = arith.minsi %v32, %c1 : index
    %v34 = arith.cmpi slt, %v32, %c1 : index
    %v35 = arith.muli %m_index2, %c2 : index
    %v36 = arith.muli %v15, %v35 : index
    %v37 = arith.muli %v14, %m_index2 : index
    %v38 = arith.addi %v36, %v37 : index
    %v39 = arith.muli %v31, %c4 : index
    %v40 = arith.addi %v38, %v39 : index
    %gm41 = memref.reinterpret_cast %tensor_y to offset: [%v40], sizes: [%v33], strides: [1] : memref<?xi32, #hivm.address_space<gm>> to memref<?xi32, strided<[1], offset: ?>, #hivm.address_space<gm>>
    %ub42 = memref.reinterpret_cast %ub16 to offset: [0], sizes: [%v33], strides: [1] : memref<64xi32, #hivm.address_space<ub>> to memref<?xi32, strided<[1]>, #hivm.address_space<ub>>
    hivm.hir.store ins(%ub42 : memref<?xi32, strided<[1]>, #hivm.address_space<ub>>) outs(%gm41 : memref<?xi32, strided<[1], offset: ?>, #hivm.address_space<gm>>)
  }
  return
}
}
