//! The two SQL schemas: same migrations, same tables, and a migrated database equals a fresh one.

use std::collections::BTreeMap;
use std::path::Path;

use sqlx::migrate::Migrator;
use sqlx::{Connection, PgConnection, Row, SqliteConnection, query};

use crate::world::cluster;

const SQLITE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../migrations/sqlite");
const POSTGRES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../migrations/postgres");

/// Columns of each table: name and whether it may be NULL.
type Tables = BTreeMap<String, Vec<(String, bool)>>;

async fn migrations(folder: &str) -> Migrator {
    Migrator::new(Path::new(folder)).await.unwrap()
}

fn names(migrator: &Migrator) -> Vec<(i64, String)> {
    let all = migrator.iter();
    all.map(|one| (one.version, one.description.to_string()))
        .collect()
}

async fn sqlite() -> SqliteConnection {
    SqliteConnection::connect("sqlite::memory:").await.unwrap()
}

async fn sqlite_schema(db: &mut SqliteConnection) -> Vec<String> {
    let sql = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE '\\_sqlx%' ESCAPE '\\'
        ORDER BY type, name";
    let rows = query(sql).fetch_all(db).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

async fn sqlite_tables(db: &mut SqliteConnection) -> Tables {
    let sql = "SELECT t.name, c.name, c.\"notnull\" = 1 OR c.pk > 0 FROM sqlite_master t, pragma_table_info(t.name) c
        WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite%' AND t.name NOT LIKE '\\_sqlx%' ESCAPE '\\'";
    let mut tables = Tables::new();
    for row in query(sql).fetch_all(db).await.unwrap() {
        let columns = tables.entry(row.get(0)).or_default();
        columns.push((row.get(1), row.get::<i64, _>(2) == 0));
    }
    tables.values_mut().for_each(|columns| columns.sort());
    tables
}

/// Columns, constraints, indices and triggers as PostgreSQL prints them.
async fn postgres_schema(db: &mut PgConnection) -> Vec<String> {
    let sql = "SELECT format('%s.%s %s %s %s', table_name, column_name, data_type, is_nullable, column_default)
            AS line FROM information_schema.columns WHERE table_schema = 'public'
        UNION ALL SELECT conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid)
            FROM pg_constraint WHERE connamespace = 'public'::regnamespace
        UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'
        UNION ALL SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
        ORDER BY 1";
    let rows = query(sql).fetch_all(db).await.unwrap();
    let lines = rows.iter().map(|row| row.get::<String, _>(0));
    lines.filter(|line| !line.contains("_sqlx")).collect()
}

async fn postgres_tables(db: &mut PgConnection) -> Tables {
    let sql = "SELECT table_name, column_name, is_nullable = 'YES' FROM information_schema.columns
        WHERE table_schema = 'public' AND table_name NOT LIKE '\\_sqlx%'";
    let mut tables = Tables::new();
    for row in query(sql).fetch_all(db).await.unwrap() {
        let columns = tables.entry(row.get(0)).or_default();
        columns.push((row.get(1), row.get(2)));
    }
    tables.values_mut().for_each(|columns| columns.sort());
    tables
}

#[tokio::test]
async fn both_backends_have_the_same_migrations() {
    let (sqlite, postgres) = (migrations(SQLITE).await, migrations(POSTGRES).await);
    assert!(!names(&sqlite).is_empty());
    assert_eq!(names(&sqlite), names(&postgres));
    let versions: Vec<i64> = names(&sqlite).iter().map(|(version, _)| *version).collect();
    assert_eq!(versions, (1..=versions.len() as i64).collect::<Vec<_>>());
}

#[tokio::test]
async fn sqlite_migrated_in_steps_and_twice_equals_a_fresh_database() {
    let all = migrations(SQLITE).await;
    let (mut fresh, mut stepped) = (sqlite().await, sqlite().await);
    all.run(&mut fresh).await.unwrap();
    for (version, _) in names(&all) {
        all.run_to(version, &mut stepped).await.unwrap();
    }
    all.run(&mut stepped).await.unwrap();
    let schema = sqlite_schema(&mut fresh).await;
    assert!(schema.len() > 10);
    assert_eq!(schema, sqlite_schema(&mut stepped).await);
}

#[tokio::test]
async fn postgres_migrated_in_steps_and_twice_equals_a_fresh_database() {
    let (Some(a), Some(b)) = (
        cluster::empty_database().await,
        cluster::empty_database().await,
    ) else {
        return;
    };
    let all = migrations(POSTGRES).await;
    let mut fresh = PgConnection::connect(&a.url).await.unwrap();
    let mut stepped = PgConnection::connect(&b.url).await.unwrap();
    all.run(&mut fresh).await.unwrap();
    for (version, _) in names(&all) {
        all.run_to(version, &mut stepped).await.unwrap();
    }
    all.run(&mut stepped).await.unwrap();
    let schema = postgres_schema(&mut fresh).await;
    assert!(schema.len() > 100);
    assert_eq!(schema, postgres_schema(&mut stepped).await);
}

#[tokio::test]
async fn both_backends_have_the_same_tables_and_columns() {
    let Some(database) = cluster::empty_database().await else {
        return;
    };
    let mut here = sqlite().await;
    migrations(SQLITE).await.run(&mut here).await.unwrap();
    let mut there = PgConnection::connect(&database.url).await.unwrap();
    migrations(POSTGRES).await.run(&mut there).await.unwrap();
    assert_eq!(
        sqlite_tables(&mut here).await,
        postgres_tables(&mut there).await
    );
}
