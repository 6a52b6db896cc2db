use super::*;

#[test]
fn every_set_obeys_its_bound_or_says_insecure() {
    for name in Params::names() {
        let p = Params::by_name(name).unwrap();
        let bound = bound_128(p.log_n).unwrap();
        assert_eq!(p.is_insecure(), name.ends_with("-INSECURE"));
        assert_eq!(p.is_insecure(), p.log_qp() > bound, "{name}");
        if let Security::Estimated {
            bits, sparse_bits, ..
        } = p.security
        {
            assert!(bits >= 128.0 && sparse_bits >= 128.0);
        }
        let sparse_log = (p.q[0] as f64).log2() + (p.p[0] as f64).log2();
        assert!(sparse_log < 100.1);
        assert_eq!(p.max_level(), 28);
        assert_eq!(p.boot_out_level(), 18);
    }
    let p = Params::by_name("n16-128").unwrap();
    assert!((p.log_qp() - 1706.0).abs() < 0.5, "{}", p.log_qp());
}

#[test]
fn a_weak_set_cannot_claim_security_nor_hide_insecurity() {
    let mut p = Params::by_name("n14-INSECURE").unwrap();
    p.name = "n14-128".into();
    assert!(matches!(p.check(), Err(ParamError::BelowSecurity { .. })));
    let mut p = Params::by_name("n16-128").unwrap();
    p.security = Security::Insecure;
    assert!(matches!(p.check(), Err(ParamError::BelowSecurity { .. })));
    let mut p = Params::by_name("n16-128").unwrap();
    p.log_n = 15;
    assert!(matches!(p.check(), Err(ParamError::BelowSecurity { .. })));
}

#[test]
fn a_set_that_differs_from_its_estimate_is_refused_by_every_constructor() {
    let good = Params::by_name("n16-128").unwrap();
    let Security::Estimated {
        log_qp,
        bound_log_qp,
        source,
        ..
    } = good.security
    else {
        panic!("no estimate")
    };
    assert_eq!(log_qp, good.log_qp());
    assert_eq!(Some(bound_log_qp), bound_128(16));
    assert!(source.contains("lattice-estimator"));
    let changes: [fn(&mut Params); 5] = [
        |p| p.sigma = 1.0,
        |p| p.sparse_h = 16,
        // one more level: 50 bits over the bound
        |p| {
            p.q.push(1125899852578817);
            p.usable_levels += 1;
        },
        |p| p.log_n = 15,
        |p| p.name = "n16-128-INSECURE".into(),
    ];
    for (i, change) in changes.into_iter().enumerate() {
        let mut p = good.clone();
        change(&mut p);
        if i == 2 {
            assert!(p.log_qp() > bound_log_qp);
        }
        let refused = p.check();
        assert!(
            matches!(refused, Err(ParamError::BelowSecurity { .. })),
            "change {i}: {refused:?}"
        );
        assert!(crate::Context::new(p).is_err(), "change {i}");
    }
}

#[test]
fn broken_sets_are_refused() {
    let good = Params::by_name("n10-INSECURE").unwrap();
    let broken = |f: fn(&mut Params)| {
        let mut p = good.clone();
        f(&mut p);
        p.check().is_err()
    };
    assert!(broken(|p| p.q[3] = p.q[4]));
    assert!(broken(|p| p.q[3] += 2));
    assert!(broken(|p| p.p[0] = p.q[0]));
    assert!(broken(|p| {
        p.q.pop();
    }));
    assert!(broken(|p| {
        p.p.pop();
    }));
    assert!(broken(|p| p.log_n = 17));
    assert!(broken(|p| p.sigma = f64::NAN));
    assert!(broken(|p| p.sparse_h = 0));
    assert_eq!(
        Params::by_name("n12"),
        Err(ParamError::Unknown("n12".into()))
    );
}

#[test]
fn digests_tell_the_sets_apart() {
    let digests: Vec<_> = Params::names()
        .iter()
        .map(|n| Params::by_name(n).unwrap().digest())
        .collect();
    for (i, d) in digests.iter().enumerate() {
        assert!(!digests[..i].contains(d));
        assert_eq!(Params::by_digest(d).unwrap().name, Params::names()[i]);
    }
    let mut p = Params::by_name("n10-INSECURE").unwrap();
    p.sigma = 3.2;
    assert_ne!(p.digest(), digests[0]);
    assert_eq!(Params::by_digest(&[0; 32]), None);
}
