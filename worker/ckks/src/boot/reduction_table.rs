//! Chebyshev coefficients of the modular reduction, written by tools/modreduction.py.
//! The test in `reduction.rs` checks what they approximate.

/// Bits of the f64 coefficients of T_1, T_3, .. T_95.
#[rustfmt::skip]
pub(super) const ODD_COEFFICIENT_BITS: [u64; 48] = [
    0x3f4413ee7c9a3294, // T_1: 6.127276e-04
    0xbf5b9d7478b70290, // T_3: -1.685489e-03
    0xbf70efd9ecfe1b57, // T_5: -4.134990e-03
    0xbf72c95040c87792, // T_7: -4.586519e-03
    0xbf6a2782ed79922d, // T_9: -3.192669e-03
    0xbf625dbed0750bd4, // T_11: -2.241967e-03
    0xbf69a132c2a0e176, // T_13: -3.128623e-03
    0xbf6ff582f0b7f267, // T_15: -3.901249e-03
    0xbf5360c08942663a, // T_17: -1.182735e-03
    0x3f74d75002e48bf5, // T_19: 5.088151e-03
    0x3f85342c1de1ca5f, // T_21: 1.035342e-02
    0x3f8423856b63e258, // T_23: 9.833376e-03
    0x3f6a1713ffabc7c4, // T_25: 3.184833e-03
    0xbf789011c3da5fb6, // T_27: -5.996770e-03
    0xbf89f0c50a5b1ce0, // T_29: -1.266626e-02
    0xbf86bd06acf48367, // T_31: -1.110273e-02
    0x3f6495d9d7c07ddb, // T_33: 2.512861e-03
    0x3f973c070e016501, // T_35: 2.268992e-02
    0x3fa09a4717db9d2d, // T_37: 3.242705e-02
    0x3f915497338f8a33, // T_39: 1.692425e-02
    0xbf90fe17d7b35a5b, // T_41: -1.659429e-02
    0xbfa3355e9fa23cbf, // T_43: -3.751655e-02
    0xbf94bfa1add370d2, // T_45: -2.026227e-02
    0x3f9564e3ed2b8c52, // T_47: 2.089268e-02
    0x3fa3270ab42b1ae3, // T_49: 3.740724e-02
    0x3f788b84b2bc947b, // T_51: 5.992430e-03
    0xbf9cdd2b2937e200, // T_53: -2.818744e-02
    0xbf853ba292a55ce8, // T_55: -1.036765e-02
    0x3f9a38686a305b29, // T_57: 2.560580e-02
    0x3f6d48fa9abad9bc, // T_59: 3.574838e-03
    0xbfa4452488739caf, // T_61: -3.959002e-02
    0xbf7f9c732de1eaf6, // T_63: -7.717562e-03
    0x3fa105265a139086, // T_65: 3.324241e-02
    0xbf907ad248325d8e, // T_67: -1.609353e-02
    0xbf9837c00be88bd3, // T_69: -2.365017e-02
    0x3fa5b441f356f33c, // T_71: 4.239088e-02
    0xbf823b3deb7bf85d, // T_73: -8.902057e-03
    0xbf942d2229f9b1bc, // T_75: -1.970342e-02
    0x3fa90ab03b506432, // T_77: 4.890967e-02
    0xbfa887b25e24863c, // T_79: -4.791028e-02
    0x3fa285fea6ebdb21, // T_81: 3.617855e-02
    0xbf9bf059e966938e, // T_83: -2.728405e-02
    0x3f85f2279701ac42, // T_85: 1.071578e-02
    0xbf7c3d566dd688b4, // T_87: -6.894434e-03
    0x3f6d4eece9fb6ed4, // T_89: 3.577674e-03
    0xbf29d296beafb13a, // T_91: -1.970109e-04
    0x3f4385da8c64ced7, // T_93: 5.957906e-04
    0xbf2aad07dd23da35, // T_95: -2.035210e-04
];
